"""Continuous batching of a server that generates by itself."""

from collections import deque
from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import BatchBuilder, BatchLimits, Decision, Queue, Scheduler, schedulers
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("prefill-first")
@dataclass(frozen=True)
class PrefillFirst(Scheduler):
    """Prompts go before the requests that are running, as long as the KV of all of them fits.

    A batch of prompts holds at most `prompt_tokens` tokens, or one prompt.
    """

    prompt_tokens: int = 2048
    source = "vLLM, Kwon et al. 2023"

    def __post_init__(self) -> None:
        require(self.prompt_tokens >= 1, f"prefill-first: prompt_tokens must be at least 1, not {self.prompt_tokens}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PrefillFirstQueue(self.prompt_tokens, estimator, limits)


class _PrefillFirstQueue(Queue):
    def __init__(self, prompt_tokens: int, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._prompt_tokens = prompt_tokens
        self._prompts: deque[WaitingRound] = deque()
        self._running: dict[int, WaitingRound] = {}
        self._kv_tokens = 0

    def __len__(self) -> int:
        return len(self._prompts) + len(self._running)

    def add(self, request: WaitingRound) -> None:
        if not request.cached:
            self._prompts.append(request)
            return
        self._running[request.client] = request
        self._kv_tokens += request.kv_tokens

    def changed(self, request: WaitingRound) -> None:
        """Without its KV it is a prompt again, ahead of those that never ran."""
        if self._running.pop(request.client, None) is None:
            return
        self._kv_tokens = sum(one.kv_tokens for one in self._running.values())
        self._prompts.appendleft(request)

    def next_batch(self, now_s: float) -> Decision:
        growing = self._admitted()
        return growing.decision() if growing.requests else self._running_on().decision()

    def _admitted(self) -> BatchBuilder:
        """Prompts that fit beside all that is running."""
        growing, tokens = self.growing(), 0
        places, room = self.limits.requests - len(self._running), self.limits.kv_tokens - self._kv_tokens
        while self._prompts and len(growing.requests) < places:
            tokens += self._prompts[0].new
            if tokens > room or (growing.requests and tokens > self._prompt_tokens):
                break
            growing.add(self._prompts.popleft())
        return growing

    def _running_on(self) -> BatchBuilder:
        """One step of what is running, the requests that came first before the others."""
        growing = self.growing()
        for request in self._running.values():
            if growing.fits(request):
                growing.add(request)
        for request in growing.requests:
            del self._running[request.client]
            self._kv_tokens -= request.kv_tokens
        return growing
