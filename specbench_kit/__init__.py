"""Benchmark speculative-decoding policies on one engine."""

__version__ = "0.1.0"
