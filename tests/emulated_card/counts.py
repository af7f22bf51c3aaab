"""Counts what costs time on a GPU, by the place in the code that caused it."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Literal

import torch

Kind = Literal[
    "launch", "wait", "synchronise", "copy to card", "copy to host", "copy between cards", "replay"
]
"""A `wait` blocks the host until one result has arrived; `synchronise` until a card, a stream or an event is done."""

_EMULATION, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)
_LIBRARY = "site-packages"
_rank_of_code: dict[CodeType, int] = {}


class Counts:
    """The number of events of each kind at each place, such as `models/runner.py:55`."""

    def __init__(self) -> None:
        self.by_place: Counter[tuple[Kind, str]] = Counter()

    def add(self, kind: Kind) -> None:
        """Count one event at the place that is running."""
        self.by_place[kind, calling_place()] += 1

    def total(self, kind: Kind) -> int:
        """Return the number of events of a kind."""
        return sum(count for (counted, _), count in self.by_place.items() if counted == kind)

    def places(self, kind: Kind) -> Counter[str]:
        """Return the number of events of a kind by place."""
        return Counter(
            {caller: count for (counted, caller), count in self.by_place.items() if counted == kind}
        )

    @property
    def launches(self) -> int:
        """Return the number of kernels launched one by one; what a graph replays is not among them."""
        return self.total("launch")

    @property
    def waits(self) -> int:
        """Return how often the host waited to read a result: `.item()`, `.tolist()`, `.cpu()`, a mask as an index."""
        return self.total("wait")

    @property
    def synchronisations(self) -> int:
        """Return how often the host waited for a whole card, a stream or an event."""
        return self.total("synchronise")

    @property
    def copies_to_card(self) -> int:
        """Return the number of copies from the host to a card."""
        return self.total("copy to card")

    @property
    def replays(self) -> int:
        """Return the number of graphs replayed."""
        return self.total("replay")

    @contextmanager
    def during(self) -> Iterator["Counts"]:
        """Yield counts that hold, at the end, what was counted inside."""
        before, inside = self.by_place.copy(), Counts()
        try:
            yield inside
        finally:
            inside.by_place = self.by_place - before


def calling_place() -> str:
    """Return the innermost line of the kit that is running; outside of the kit, that of a test."""
    frame, outside = sys._getframe(1), ""
    while frame is not None:
        rank = _rank_of_code.get(frame.f_code)
        if rank is None:
            rank = _rank_of_code[frame.f_code] = _rank(frame.f_code.co_filename)
        if rank == 2:
            return f"{frame.f_code.co_filename.rpartition('/specbench_kit/')[2]}:{frame.f_lineno}"
        if rank == 1 and not outside:
            outside = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return outside or "?"


def _rank(file: str) -> int:
    """Return 2 for a file of the kit, 0 for one of a library or of the emulation, 1 for any other."""
    if "/specbench_kit/" in file:
        return 2
    if file.startswith(_EMULATION):
        return int(Path(file).name.startswith("test_"))
    return 0 if file.startswith((_TORCH, "<")) or _LIBRARY in file else 1
