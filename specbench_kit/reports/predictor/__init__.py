"""The report of a predictor's training."""
