"""The time of decoding one request after the other under a deployment: `Timelines` for one request
and chains.
"""

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from specbench_kit.decoding.latency import Row
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DRAFTER, WorkLog
from specbench_kit.runs.document import HiddenStates

REMEMBERED = 1 << 16
"""Rows whose seconds are cached: requests pass through the same lengths again and again."""


class RoundTimes(NamedTuple):
    """The seconds of one round by phase, and the time on the run's clock at which it ended."""

    prefill_s: float
    draft_s: float
    policy_s: float
    link_s: float
    verify_s: float
    end_s: float


class SingleRequestClock:
    """The clock of a run that decodes one request after the other, with edge, link and server to
    itself.

    Every sum is taken in the same order as in `Timelines`, so that both give the same seconds to
    the last bit.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        on_edge: bool,
        learned: bool,
        states: HiddenStates | None = None,
        log: WorkLog | None = None,
    ) -> None:
        self._log = log
        self._drafter = deployment.drafter
        self._verifier = deployment.verifier
        self._link = deployment.link
        self._on_edge = on_edge
        self._cached_prompts = deployment.cached_prompts
        self._states = states
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._steps_s = lru_cache(REMEMBERED)(self._drafting_s)
        self._pass_s = lru_cache(REMEMBERED)(lambda row: self._verifier.pass_s([row]))
        self.now_s = 0.0
        self.drafting_s = 0.0
        """The drafting device's seconds for the current request."""

    def begin(self, request_id: str, prompt_tokens: int) -> None:
        """Start the next request, which arrives now."""
        self._request_id = request_id
        self._random = Random(f"{self._link.seed}/{request_id}")
        self._draft_cached = self._target_cached = prompt_tokens - 1 if self._cached_prompts else 0
        self._prompt_sent = False
        self.drafting_s = 0.0

    def round(
        self, context: int, drafted: int, submitted: int, accepted: int, committed: int
    ) -> RoundTimes:
        """Charge one round after `context` committed tokens, and return its seconds."""
        if self._log is not None:
            self._note_work(self._log, context, drafted)
        ready_s = self.now_s
        prefill_s = 0.0
        draft_s = 0.0
        policy_s = 0.0
        if drafted:
            if not self._draft_cached and context > 1:
                # The draft model does not have the prompt in KV yet.
                self._draft_cached = context - 1
                prefill_s = self._drafter.latency.seconds([(context - 1, 0)])
            steps_s = self._steps_s((context - self._draft_cached, self._draft_cached), drafted)
            ready_s += prefill_s
            self.drafting_s += prefill_s
            for step_s in steps_s:
                ready_s = ready_s + step_s + self._decision_s
                draft_s += step_s
                policy_s += self._decision_s
                self.drafting_s = self.drafting_s + step_s + self._decision_s
            # The last drafted token was never forwarded; of the others, only the accepted ones stay
            # in KV. A drafter that reads hidden states forwards even these again.
            self._draft_cached = context + (0 if self._states else min(drafted - 1, accepted))
        crosses = self._on_edge or not self._prompt_sent
        up_s = 0.0
        if crosses:
            sent = submitted if self._on_edge else 0
            tokens = (0 if self._prompt_sent else context) + sent
            more_bytes = sent * self._link.draft_bytes
            up_s = self._link.message_s(tokens, self._link.up_bytes_per_s, self._random, more_bytes)
            self._prompt_sent = True
        verify_s = self._pass_s((context - self._target_cached + submitted, self._target_cached))
        down_s = 0.0
        if crosses:
            states_bytes = self._states.bytes_per_token if self._states else 0.0
            more_bytes = (context - self._target_cached + accepted) * states_bytes
            down_s = self._link.message_s(
                accepted + 1, self._link.down_bytes_per_s, self._random, more_bytes
            )
        self._target_cached = context + committed - 1
        self.now_s = ready_s + up_s + verify_s + down_s
        return RoundTimes(prefill_s, draft_s, policy_s, up_s + down_s, verify_s, self.now_s)

    def _note_work(self, log: WorkLog, context: int, drafted: int) -> None:
        name = self._request_id
        log.begin(name, context)
        if drafted:
            cached = self._draft_cached
            if not cached and context > 1:
                log.forward(DRAFTER, "prefill", {name: (context - 1, 0)})
                cached = context - 1
            for row in _chain((context - cached, cached), drafted):
                log.forward(DRAFTER, "draft", {name: row})
                if self._decision_s:
                    log.decide(name)
        log.send(name)
        log.end(name)

    def _drafting_s(self, first: Row, count: int) -> Sequence[float]:
        """Return the seconds of each step of a chain; the first step also computes what the draft
        model lacks in KV.
        """
        return [self._drafter.latency.seconds([row]) for row in _chain(first, count)]


def _chain(first: Row, count: int) -> list[Row]:
    """Return the rows of the forwards of a chain, the first of which is given."""
    new, cached = first
    return [first, *((1, cached + new + step) for step in range(count - 1))]
