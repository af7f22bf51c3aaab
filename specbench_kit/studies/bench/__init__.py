"""Benchmark methods on datasets, or on a trace, beside autoregressive decoding."""
