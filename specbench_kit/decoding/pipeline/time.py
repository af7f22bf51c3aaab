"""What a pipeline's loop asks of modelled time, and the published laws that its steps follow."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.session import Session


class StepTime(Protocol):
    """Lets the time pass that the pipeline's steps would take on modelled hardware."""

    def admit(self, session: Session) -> None:
        """Begin with a new request."""

    def release(self, session: Session) -> None:
        """Forget a finished request."""

    def step(self, streams: Sequence[RequestStream], forwards: Sequence[Sequence[Row]] | None) -> None:
        """Let the time of one step pass; `forwards` are the drafter's, None if it forwards the levels fed."""


def expected_steps(stages: int, hit_rate: float) -> float:
    """Return the expected steps per token if the true token is in flight with probability `hit_rate` each time.

    A hit yields its own successor one step later, a miss refills all stages.
    """
    return 1 + (1 - hit_rate) * (stages - 1)


def published_steps(stages: int, hit_rate: float) -> float:
    """Return the expected steps per token by SpecPipe's Eq. 2, which counts the step of a miss twice."""
    return 1 + (1 - hit_rate) * stages


def microbatch_tbt(stages: int, requests: int, step: Callable[[int], float]) -> float:
    """Return the time between tokens without drafts, with the requests in as many groups as there are stages.

    `step` gives a stage's seconds for a group's number of rows.
    """
    groups = min(stages, requests)
    return stages * step(ceil(requests / groups))
