"""Decoding one request after the other under a deployment: `Timelines` for a batch of one, and chains."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from specbench_kit.decoding.latency import Row
from specbench_kit.deployments.base import Deployment

REMEMBERED = 1 << 16
"""Rows whose seconds are kept: requests come by the same lengths again and again."""


class RoundTimes(NamedTuple):
    """Seconds of one round by phase, and when it ended on the run's clock."""

    prefill_s: float
    draft_s: float
    policy_s: float
    link_s: float
    verify_s: float
    end_s: float


class SingleRequestClock:
    """The clock of a run whose requests have edge, link and server to themselves, one after the other.

    Every sum is taken in the order in which `Timelines` takes it, so that both give the same seconds to the last bit.
    """

    def __init__(self, deployment: Deployment, *, on_edge: bool, learned: bool) -> None:
        self._drafter, self._verifier, self._link = deployment.drafter, deployment.verifier, deployment.link
        self._on_edge, self._cached_prompts = on_edge, deployment.cached_prompts
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._steps_s = lru_cache(REMEMBERED)(self._drafting_s)
        self._pass_s = lru_cache(REMEMBERED)(lambda row: self._verifier.pass_s([row]))
        self.now_s = 0.0
        self.drafting_s = 0.0
        """Of the request."""

    def begin(self, request_id: str, prompt_tokens: int) -> None:
        """The next request arrives."""
        self._random = Random(f"{self._link.seed}/{request_id}")
        self._draft_cached = self._target_cached = prompt_tokens - 1 if self._cached_prompts else 0
        self._asked = False
        self.drafting_s = 0.0

    def round(self, context: int, drafted: int, submitted: int, accepted: int, committed: int) -> RoundTimes:
        """One round after `context` committed tokens."""
        ready_s, prefill_s, draft_s, policy_s = self.now_s, 0.0, 0.0, 0.0
        if drafted:
            prefill_s = self._prefill_s(context)
            steps_s = self._steps_s((context - self._draft_cached, self._draft_cached), drafted)
            ready_s += prefill_s
            self.drafting_s += prefill_s
            for step_s in steps_s:
                ready_s = ready_s + step_s + self._decision_s
                draft_s += step_s
                policy_s += self._decision_s
                self.drafting_s = self.drafting_s + step_s + self._decision_s
            # The last drafted token was never forwarded, and of the others those that were accepted stay.
            self._draft_cached = context + min(drafted - 1, accepted)
        crosses = self._on_edge or not self._asked
        up_s = self._up_s(context, submitted) if crosses else 0.0
        verify_s = self._pass_s((context - self._target_cached + submitted, self._target_cached))
        down_s = self._link.message_s(accepted + 1, self._link.down_bytes_per_s, self._random) if crosses else 0.0
        self._target_cached = context + committed - 1
        self.now_s = ready_s + up_s + verify_s + down_s
        return RoundTimes(prefill_s, draft_s, policy_s, up_s + down_s, verify_s, self.now_s)

    def _prefill_s(self, context: int) -> float:
        """Of the prompt, where the draft model does not have it yet."""
        if self._draft_cached or context == 1:
            return 0.0
        self._draft_cached = context - 1
        return self._drafter.latency.seconds([(context - 1, 0)])

    def _drafting_s(self, first: Row, count: int) -> Sequence[float]:
        """Of every step of a chain: the first one computes what the draft model lacks, too."""
        new, cached = first
        rows = [first, *((1, cached + new + place) for place in range(count - 1))]
        return [self._drafter.latency.seconds([row]) for row in rows]

    def _up_s(self, context: int, submitted: int) -> float:
        tokens = (0 if self._asked else context) + (submitted if self._on_edge else 0)
        self._asked = True
        return self._link.message_s(tokens, self._link.up_bytes_per_s, self._random)
