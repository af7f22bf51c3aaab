"""WISP (Li et al. 2025): published numbers that reports quote, for comparison only."""

from specbench_kit.predictors.confusion import Confusion

MLP_CONFUSION = Confusion(true_negatives=92, false_positives=68, false_negatives=112, true_positives=451)
"""The MLP's test tokens, "positive" meaning accepted; the paper rounds the rates that follow from these counts."""
