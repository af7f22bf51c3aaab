"""The report of latency profiles."""
