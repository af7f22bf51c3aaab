"""SpecEdge (Park et al. 2025): published numbers, for comparison only."""

from typing import NamedTuple


class Served(NamedTuple):
    """Tokens per second of one server, without edge devices and with them, and its price per hour."""

    server_only: float
    specedge: float
    price_per_hour: float


TABLE_1 = {"qwen3-14b/1.7b": Served(31.78, 66.54, 4.05), "qwen3-32b/1.7b": Served(24.96, 56.47, 5.05)}
"""Multi-turn conversation of Spec-Bench, by pair: on an A100 of 40 GB and on one of 80 GB."""
EDGE_PER_HOUR = 0.35
"""One RTX 4090. Every printed cost is that of the server and of two of them, for the whole time."""
COST_GAIN, THROUGHPUT_GAIN, LATENCY_GAIN = 1.91, 2.22, 0.1124
"""Averages by the abstract, over serving without edge devices: tokens per dollar, throughput, time between tokens."""
