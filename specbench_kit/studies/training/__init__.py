"""Train rejection predictors on traces, choose their thresholds, and evaluate what they are
worth.
"""
