"""The seconds of a round, as policies plan with them: expected ones of each part, and measured ones
of the whole.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Latencies

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.latency import Row


def forward_s(latencies: Latencies, rows: "Sequence[Row]") -> float:
    """Return the seconds of one draft forward of these rows: in one batch, or each on the request's
    own device.
    """
    if latencies.link is None:
        return latencies.draft.seconds(rows)
    return max(latencies.draft.seconds([row]) for row in rows)


def draft_s(latencies: Latencies, drafts: "Sequence[Draft]", steps: int) -> float:
    """Return the seconds of `steps` draft forwards, each of one token per request."""
    cached = [draft.context_length - 1 for draft in drafts]

    def step_s(step: int) -> float:
        return forward_s(latencies, [(1, before + step) for before in cached])

    return sum(map(step_s, range(steps)))


def link_s(latencies: Latencies, requests: int, drafted: int) -> float:
    """Return the seconds that a round of up to `drafted` tokens per request spends on the link; 0
    without one.
    """
    return 0.0 if latencies.link is None else latencies.link.seconds(drafted, drafted + 1, requests)


def verify_s(latencies: Latencies, drafts: "Sequence[Draft]", lengths: Sequence[int]) -> float:
    """Return the seconds of a verification with `lengths[i]` drafted tokens of request i, without
    the link.
    """
    rows = [
        (1 + length, draft.context_length - 1)
        for draft, length in zip(drafts, lengths, strict=True)
    ]
    return latencies.verify.seconds(rows)


def answer_s(latencies: Latencies, drafts: "Sequence[Draft]", lengths: Sequence[int]) -> float:
    """Return the seconds from the last drafted token to the verdict: a verification, and the link
    to it and back.
    """
    return verify_s(latencies, drafts, lengths) + link_s(latencies, len(drafts), max(lengths))


def round_s(latencies: Latencies, drafts: "Sequence[Draft]", steps: int) -> float:
    """Return the seconds of a round that drafts and verifies `steps` tokens of every request."""
    return draft_s(latencies, drafts, steps) + answer_s(latencies, drafts, [steps] * len(drafts))


class RoundTime:
    """The time on the clock from the start of a draft to the arrival of its verdicts."""

    def __init__(self, drafter: "Drafter") -> None:
        self._clock = drafter.clock
        self._started_s = self._clock.now_s()
        self.typical = all(draft.session.produced for draft in drafter.drafts)
        """False if a request of the round has its prefill in it, which takes additional time."""

    def seconds(self) -> float:
        """Return the seconds since the draft began."""
        return self._clock.now_s() - self._started_s
