"""Learned predictors of acceptance: families, search, scoring, and files that run no code when
loaded.
"""
