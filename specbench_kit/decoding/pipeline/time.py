"""What a pipeline's loop asks of modelled time, and the laws that its steps follow."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.session import Session


class StepTime(Protocol):
    """Lets the time pass that a pipeline's steps would take elsewhere."""

    def admit(self, session: Session) -> None:
        """Begin with a new request."""

    def release(self, session: Session) -> None:
        """Forget a request."""

    def step(self, streams: Sequence[RequestStream], forwards: Sequence[Sequence[Row]] | None) -> None:
        """Let the time of one step pass, in which the drafter forwards this, or else the levels that were fed."""


def expected_steps(stages: int, hit_rate: float) -> float:
    """Steps per token where the true one is in flight with that probability, independently each time.

    A hit yields its own successor one step later, a miss fills all stages anew.
    """
    return 1 + (1 - hit_rate) * (stages - 1)


def published_steps(stages: int, hit_rate: float) -> float:
    """The same by SpecPipe's Eq. 2, which counts the step of a miss twice."""
    return 1 + (1 - hit_rate) * stages


def microbatch_tbt(stages: int, requests: int, step: Callable[[int], float]) -> float:
    """Time between tokens without drafts: requests in as many groups as there are stages, `step` by a group's rows."""
    groups = min(stages, requests)
    return stages * step(ceil(requests / groups))
