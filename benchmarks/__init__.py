"""Timings with bounds that they must meet: `python -m benchmarks [name ...]`. Not part of the installed package."""
