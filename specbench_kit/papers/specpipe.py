"""SpecPipe (Yin et al. 2025): published numbers, for comparison only."""

TBT_MS = {"specpipe": 54.67, "autoregressive": 302.39, "specinfer": 117.92, "PP-vLLM": 181.41, "EAGLE3": 272.30}
"""Time between tokens on HumanEval-X, every method in the same pipeline."""
GAINS = {"autoregressive": (4.2, 5.5), "specinfer": (2.1, 2.4)}
"""How many times shorter SpecPipe's time between tokens is, from the least to the most over the data sets."""
BATCH_THROUGHPUT, BATCH_TBT = (1.64, 2.08), (1.61, 2.06)
"""SpecPipe-DB over PP-vLLM at batch sizes from 2 on: throughput, and how many times lower the time between tokens."""
EXAMPLE_STAGES, EXAMPLE_HIT_RATE, EXAMPLE_STEPS = 8, 0.95, 1.40
"""Steps per token by Eq. 2 where the true token is in flight with that probability."""
