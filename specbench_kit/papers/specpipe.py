"""Ranges published by SpecPipe (Yin et al. 2025) that no experiment of the kit reproduces; reports only quote them."""

GAINS = {"autoregressive": (4.2, 5.5), "specinfer": (2.1, 2.4)}
"""How many times shorter SpecPipe's time between tokens is: the smallest and the largest factor over the data sets."""
BATCH_THROUGHPUT = (1.64, 2.08)
BATCH_TBT = (1.61, 2.06)
"""SpecPipe-DB over PP-vLLM from batch size 2 on: throughput, and how many times lower the time between tokens is."""
