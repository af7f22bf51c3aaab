"""The one clock: the only place that reads time or waits for a device."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

import torch

from specbench_kit.decoding.records import TimeKind

Phase = Literal["prefill", "draft", "policy", "link", "queue", "verify", "commit"]


class MeasuringClock:
    """Time of this machine, which runs only inside `running`; a phase inside a phase stops the outer one."""

    time_kind: TimeKind = "measured"

    def __init__(self, device: torch.device, started_s: float = 0.0) -> None:
        self._device = device
        self._elapsed_s = started_s
        self._resumed_s: float | None = None
        self._phases: defaultdict[Phase, float] = defaultdict(float)
        self._open: list[Phase] = []
        self._mark_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let time pass."""
        self._resumed_s = perf_counter()
        try:
            yield
        finally:
            self._elapsed_s += self._synchronised_s() - self._resumed_s
            self._resumed_s = None

    def now_s(self) -> float:
        """Seconds that have passed while running."""
        return self._elapsed_s + (perf_counter() - self._resumed_s if self._resumed_s is not None else 0.0)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Charge the enclosed time to a phase."""
        self._switch()
        self._open.append(phase)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def take(self) -> dict[Phase, float]:
        """Seconds per phase since the last call."""
        taken, self._phases = self._phases, defaultdict(float)
        return taken

    def _switch(self) -> None:
        now_s = self._synchronised_s()
        if self._open:
            self._phases[self._open[-1]] += now_s - self._mark_s
        self._mark_s = now_s

    def _synchronised_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()
