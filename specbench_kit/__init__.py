"""Benchmark speculative-decoding policies on one engine; `specbench_kit.api` is the kit from Python."""

from specbench_kit.core.version import __version__

__all__ = ["__version__"]
