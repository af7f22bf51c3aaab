"""Numbers published by WISP (Li et al. 2025) that reports quote for comparison."""

from specbench_kit.predictors.confusion import Confusion

MLP_CONFUSION = Confusion(true_negatives=92, false_positives=68, false_negatives=112, true_positives=451)
"""The test tokens of WISP's MLP; positive means accepted. The paper prints rounded rates that follow from these."""
