"""Prompts in pieces beside the requests that are running, up to a number of tokens in each step."""

from collections import deque
from dataclasses import dataclass
from itertools import count

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import BatchLimits, Decision, Queue, Scheduler, schedulers
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("chunked")
@dataclass(frozen=True)
class Chunked(Scheduler):
    """A step computes at most `tokens` tokens: first of what is running, then of prompts, the last of them in part.

    A prompt begins when the KV of all of it fits beside what is running. Where what is running outgrows the memory,
    those that began last make room; their KV is computed again once there is room.
    """

    tokens: int = 2048
    source = "Sarathi-Serve, Agrawal et al. 2024; vLLM's default"

    def __post_init__(self) -> None:
        require(self.tokens >= 1, f"chunked: tokens must be at least 1, not {self.tokens}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _ChunkedQueue(self.tokens, estimator, limits)


class _ChunkedQueue(Queue):
    def __init__(self, tokens: int, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._tokens, self._order = tokens, count()
        self._prompts: deque[WaitingRound] = deque()
        self._running: dict[int, WaitingRound] = {}
        self._began: dict[int, int] = {}
        """Of each client that is running, how many had begun before."""

    def __len__(self) -> int:
        return len(self._prompts) + len(self._running)

    def add(self, request: WaitingRound) -> None:
        if request.cached:
            self._running[request.client] = request
        else:
            self._prompts.append(request)

    def changed(self, request: WaitingRound) -> None:
        """Without its KV it is a prompt again, ahead of those that never ran."""
        if self._running.pop(request.client, None):
            self._prompts.appendleft(request)

    def next_batch(self, now_s: float) -> Decision:
        running = sorted(self._running.values(), key=lambda one: self._began.setdefault(one.client, next(self._order)))
        running = running[: self.limits.requests]
        fitting, kv_tokens = self._fitting(running)
        chosen = self._chosen(fitting)
        if len(fitting) == len(self._running):
            self._begin(chosen, kv_tokens)
        for request in chosen:
            self._running.pop(request.client, None)
            request.taken = True
        parts = {one.client: tokens for one, tokens in chosen.items() if tokens < one.new}
        return Decision(list(chosen), parts=parts)

    def _fitting(self, running: list[WaitingRound]) -> tuple[list[WaitingRound], int]:
        """Those that fit with what this step adds, the first to begin before the others; and the KV of all of them."""
        needed = [one.cached + min(one.new, self._tokens) for one in running]
        total = sum(needed)
        while total > self.limits.kv_tokens:
            total -= needed[len(running) - 1]
            running = running[:-1]
        return running, sum(one.kv_tokens for one in running)

    def _chosen(self, running: list[WaitingRound]) -> dict[WaitingRound, int]:
        """How many tokens of each are computed."""
        chosen, left = {}, self._tokens
        for request in running:
            tokens = min(request.new, left)
            if tokens:
                chosen[request] = tokens
            left -= tokens
        return chosen

    def _begin(self, chosen: dict[WaitingRound, int], kv_tokens: int) -> None:
        """Prompts join as far as tokens, places and memory are left."""
        left, places = self._tokens - sum(chosen.values()), self.limits.requests - len(self._running)
        while self._prompts and left and places:
            prompt = self._prompts[0]
            kv_tokens += prompt.new
            if kv_tokens > self.limits.kv_tokens:
                return
            self._began[prompt.client] = next(self._order)
            chosen[self._prompts.popleft()] = tokens = min(prompt.new, left)
            left, places = left - tokens, places - 1
