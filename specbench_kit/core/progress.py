"""Callbacks by which long work reports its progress."""

from collections.abc import Callable

ProgressCallback = Callable[[str, int, int], None]
"""Called as `(step, done, planned)`: the name of the current step, items finished, items in
total.
"""
CountCallback = Callable[[int, int], None]
"""Called as `(done, planned)` by work that has only one step."""


def untold(done: int, planned: int) -> None:
    """Report nothing."""
