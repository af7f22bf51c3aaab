"""Decides what of every request enters the pipeline with the next step."""

from collections.abc import Sequence

from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.stream import RequestStream


class Admission:
    """Admits prompts, roots and levels as far as a step's budget goes.

    A request that gets nothing waits, while what it has in flight moves on.
    """

    def __init__(self, budget: StepBudget, batch_size: int) -> None:
        self._budget, self._roots = budget, budget.roots(batch_size)
        self._steps = 0

    def choose(self, streams: Sequence[RequestStream]) -> None:
        """Set the level that each request feeds with this step."""
        self._steps += 1
        prompts, roots, growing = list[RequestStream](), list[RequestStream](), list[RequestStream]()
        for stream in streams:
            count = len(stream.to_enter)
            (prompts if count > 1 else roots if count else growing).append(stream)
        if prompts and self._budget.prefill == "first":
            # A step of prompts alone: mixed into every step, a long prompt would slow down all levels beside it.
            room = self._budget.chunk
            for stream in prompts:
                room -= stream.take(room)
            for stream in growing:
                stream.trim(0)
            return
        used = 0
        for stream in prompts:
            used += stream.take(self._budget.piece(len(streams)))
        if roots:
            used += self._admit_roots(roots)
        shares = self._budget.allot([stream.scores for stream in growing], used) if growing else ()
        for stream, share in zip(growing, shares, strict=True):
            if share < len(stream.scores):
                stream.trim(share)

    def _admit_roots(self, roots: list[RequestStream]) -> int:
        """Let the roots of one group enter, those first that have waited longest; return how many entered."""
        if len(roots) > self._roots:
            roots.sort(key=lambda stream: stream.last_entry)
        for stream in roots[: self._roots]:
            stream.last_entry = self._steps
            stream.take(1)
        return min(len(roots), self._roots)
