"""Rejection predictors: families, search, scoring and artefacts that run no code when loaded."""
