"""Continuous batching on a server that generates by itself."""

from collections import deque
from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    BatchBuilder,
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("prefill-first")
@dataclass(frozen=True)
class PrefillFirst(Scheduler):
    """Prefills prompts before it goes on with running requests, as long as the KV of all of them
    fits.

    A batch of prompts holds at most `prompt_tokens` tokens, or a single prompt.
    """

    prompt_tokens: int = 2048
    source = "vLLM, Kwon et al. 2023"

    def __post_init__(self) -> None:
        require(
            self.prompt_tokens >= 1,
            f"prefill-first: prompt_tokens must be at least 1, not {self.prompt_tokens}",
        )

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PrefillFirstQueue(self.prompt_tokens, estimator, limits)


class _PrefillFirstQueue(Queue):
    def __init__(self, prompt_tokens: int, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._prompt_tokens = prompt_tokens
        self._prompts: deque[WaitingRound] = deque()
        self._running: dict[int, WaitingRound] = {}
        self._running_kv_tokens = 0

    def __len__(self) -> int:
        return len(self._prompts) + len(self._running)

    def add(self, request: WaitingRound) -> None:
        if not request.cached:
            self._prompts.append(request)
            return
        self._running[request.client] = request
        self._running_kv_tokens += request.kv_tokens

    def changed(self, request: WaitingRound) -> None:
        """Treat a request without its KV as a prompt again, ahead of those that never ran."""
        if self._running.pop(request.client, None) is None:
            return
        # The request's own size has changed already, so that it cannot be subtracted.
        self._running_kv_tokens = sum(running.kv_tokens for running in self._running.values())
        self._prompts.appendleft(request)

    def next_batch(self, now_s: float) -> Decision:
        prefills = self._prefill_batch()
        return prefills.decision() if prefills.requests else self._decode_batch().decision()

    def _prefill_batch(self) -> BatchBuilder:
        """Take the prompts that fit beside everything that is running."""
        batch = self.new_batch()
        tokens = 0
        slots = self.limits.requests - len(self._running)
        free_kv_tokens = self.limits.kv_tokens - self._running_kv_tokens
        while self._prompts and len(batch.requests) < slots:
            tokens += self._prompts[0].new
            if tokens > free_kv_tokens or (batch.requests and tokens > self._prompt_tokens):
                break
            batch.add(self._prompts.popleft())
        return batch

    def _decode_batch(self) -> BatchBuilder:
        """Take one step of the running requests, first come, first served."""
        batch = self.new_batch()
        for request in self._running.values():
            if batch.fits(request):
                batch.add(request)
        for request in batch.requests:
            del self._running[request.client]
            self._running_kv_tokens -= request.kv_tokens
        return batch
