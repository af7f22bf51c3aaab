"""Timings against the project's own bounds: `python -m benchmarks [name ...]`. Not part of the installed package."""
