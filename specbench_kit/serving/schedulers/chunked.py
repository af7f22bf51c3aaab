"""Chunked prefill: prompts in pieces beside the running requests, up to a number of tokens in each
step.
"""

from collections import deque
from dataclasses import dataclass
from itertools import count

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("chunked")
@dataclass(frozen=True)
class Chunked(Scheduler):
    """Computes at most `tokens` tokens per step: running requests first, then prompts, the last of
    them in part.

    A prompt begins when the KV of all of it fits beside the running requests. If these outgrow the
    memory, those that began last make room; their KV is computed again once there is room.
    """

    tokens: int = 2048
    mixes_prompts = True
    source = "Sarathi-Serve, Agrawal et al. 2024; vLLM's default"

    def __post_init__(self) -> None:
        require(self.tokens >= 1, f"chunked: tokens must be at least 1, not {self.tokens}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _ChunkedQueue(self.tokens, estimator, limits)


class _ChunkedQueue(Queue):
    def __init__(self, tokens: int, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._tokens = tokens
        self._order = count()
        self._prompts: deque[WaitingRound] = deque()
        self._running: dict[int, WaitingRound] = {}
        self._began: dict[int, int] = {}
        """Rank of each running client by the time at which it began."""

    def __len__(self) -> int:
        return len(self._prompts) + len(self._running)

    def add(self, request: WaitingRound) -> None:
        if request.cached:
            self._running[request.client] = request
        else:
            self._prompts.append(request)

    def changed(self, request: WaitingRound) -> None:
        """Treat a request without its KV as a prompt again, ahead of those that never ran."""
        if self._running.pop(request.client, None):
            self._prompts.appendleft(request)

    def next_batch(self, now_s: float) -> Decision:
        def rank(request: WaitingRound) -> int:
            return self._began.setdefault(request.client, next(self._order))

        running = sorted(self._running.values(), key=rank)[: self.limits.requests]
        fitting = self._fitting(running)
        chosen: dict[WaitingRound, int] = {}
        free_tokens = self._tokens
        for request in fitting:
            tokens = min(request.new, free_tokens)
            if tokens:
                chosen[request] = tokens
            free_tokens -= tokens
        # No prompt may begin while a running request has to stand back for lack of memory or slots.
        if len(fitting) == len(self._running):
            self._begin_prompts(chosen, free_tokens, sum(request.kv_tokens for request in fitting))
        for request in chosen:
            self._running.pop(request.client, None)
            request.scheduled = True
        chunks = {
            request.client: tokens for request, tokens in chosen.items() if tokens < request.new
        }
        return Decision(list(chosen), chunks=chunks)

    def _fitting(self, running: list[WaitingRound]) -> list[WaitingRound]:
        """Return the first running requests whose KV fits into memory with what this step adds."""
        needed = [request.cached + min(request.new, self._tokens) for request in running]
        while sum(needed) > self.limits.kv_tokens:
            needed.pop()
        return running[: len(needed)]

    def _begin_prompts(
        self, chosen: dict[WaitingRound, int], free_tokens: int, kv_tokens: int
    ) -> None:
        """Choose prompts as far as tokens, slots and memory go."""
        free_slots = self.limits.requests - len(self._running)
        while self._prompts and free_tokens and free_slots:
            prompt = self._prompts[0]
            kv_tokens += prompt.new
            if kv_tokens > self.limits.kv_tokens:
                return
            self._began[prompt.client] = next(self._order)
            chosen[self._prompts.popleft()] = tokens = min(prompt.new, free_tokens)
            free_tokens = free_tokens - tokens
            free_slots = free_slots - 1
