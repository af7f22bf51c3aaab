"""Pause the garbage collector during work that only allocates."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector inside the block; blocks may be nested.

    Work that builds millions of objects and frees none takes twice as long when the collector scans
    them over and over. The block must not leave large reference cycles behind.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
