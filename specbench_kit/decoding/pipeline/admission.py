"""What of every request enters a pipeline with the next step."""

from collections.abc import Sequence

from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.stream import RequestStream


class Admission:
    """Lets prompts, roots and levels in as a budget allows; the others wait, and move on with what is in flight."""

    def __init__(self, budget: StepBudget, batch_size: int) -> None:
        self._budget, self._roots = budget, budget.roots(batch_size)
        self._steps = 0

    def choose(self, streams: Sequence[RequestStream]) -> None:
        """Set the level of every request that enters with this step."""
        self._steps += 1
        new, roots, growing = list[RequestStream](), list[RequestStream](), list[RequestStream]()
        for stream in streams:
            ahead = len(stream.ahead)
            (new if ahead > 1 else roots if ahead else growing).append(stream)
        if new and self._budget.prefill == "first":
            self._prompts(new, growing)
        else:
            self._levels(new, roots, growing)

    def _prompts(self, new: Sequence[RequestStream], growing: Sequence[RequestStream]) -> None:
        """A step of prompts alone, of the requests that came first as far as a chunk goes."""
        left = self._budget.chunk
        for stream in new:
            left -= stream.take(left)
        for stream in growing:
            stream.trim(0)

    def _levels(
        self, new: Sequence[RequestStream], roots: list[RequestStream], growing: Sequence[RequestStream]
    ) -> None:
        taken = 0
        for stream in new:
            taken += stream.take(self._budget.piece(len(new) + len(roots) + len(growing)))
        if roots:
            taken += self._enter(roots)
        shares = self._budget.allot([stream.scores for stream in growing], taken) if growing else ()
        for stream, share in zip(growing, shares, strict=True):
            if share < len(stream.scores):
                stream.trim(share)

    def _enter(self, roots: list[RequestStream]) -> int:
        """One group's; those go first that have waited longest."""
        if len(roots) > self._roots:
            roots.sort(key=lambda stream: stream.turn)
        for stream in roots[: self._roots]:
            stream.turn = self._steps
            stream.take(1)
        return min(len(roots), self._roots)
