"""Benchmark speculative-decoding policies on one engine; `specbench_kit.api` is the kit from
Python.
"""

import os

from specbench_kit.core.version import __version__

__all__ = ["__version__"]

# After each of torch's parallel operations, its threads wait for the next one without giving up
# their processors, by default for milliseconds: long enough to take them from the threads of the
# native executors. This has to be set before torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
