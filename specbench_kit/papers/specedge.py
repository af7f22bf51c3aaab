"""SpecEdge (Park et al. 2025): published numbers, for comparison only."""

TOKENS_PER_SECOND, A100_40_PER_HOUR = 31.78, 4.05
"""Of a server without edge devices, and its price, which make 28.25 thousand tokens per dollar."""
COST_GAIN, THROUGHPUT_GAIN, LATENCY_GAIN = 1.91, 2.22, 0.1124
"""Over serving without edge devices, by the abstract: tokens per dollar, server throughput, and time between tokens."""
