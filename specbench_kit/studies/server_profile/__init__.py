"""Latency profiles of a running server, measured by its clients."""
