"""Throughput against the time per token over batch sizes."""
