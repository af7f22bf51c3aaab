"""Numbers that papers published and no experiment of the kit reproduces; reports only quote them
for comparison.
"""

from specbench_kit.predictors.confusion import Confusion

WISP_MLP_CONFUSION = Confusion(
    true_negatives=92, false_positives=68, false_negatives=112, true_positives=451
)
"""The test tokens of WISP's MLP (Li et al. 2026, arXiv 2601.11652); positive means accepted. The paper prints rounded
rates that follow from these.
"""
SPECPIPE_GAINS = {"autoregressive": (4.2, 5.5), "specinfer": (2.1, 2.4)}
"""How many times shorter the time between tokens of SpecPipe (Yin et al. 2025) is: the smallest and
the largest factor over the data sets.
"""
SPECPIPE_BATCH_THROUGHPUT = (1.64, 2.08)
SPECPIPE_BATCH_TBT = (1.61, 2.06)
"""SpecPipe-DB over PP-vLLM from batch size 2 on: throughput, and how many times lower the time
between tokens is.
"""
