"""The report of throughput against time per token over batch sizes."""
