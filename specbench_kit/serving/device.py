"""A device: it asks for responses, drafts, sends, and commits what comes back."""

from math import ceil, inf
from random import Random

from specbench_kit.errors import SkitError
from specbench_kit.serving.acceptance import Round
from specbench_kit.serving.arrivals import Asked
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import Waiting
from specbench_kit.serving.slo import budget_s
from specbench_kit.serving.timing import DraftTime

PRIOR_TOKENS = 32.0
"""Sent tokens that a device is taken to have had accepted as often as the source's average, before any were sent."""
_NOTHING = Round(0, 0, 0)


class Device:
    """One device with its link, its promise, and random numbers of its own."""

    __slots__ = (
        "_accepted_total", "_ask", "_down_s", "_draft_cached", "_link", "_on_edge", "_random", "_rounds", "_scenario",
        "_sent_total", "_speculates", "_time", "_up_s", "answered_s", "cached", "context", "draft_s", "first_s",
        "number", "prompt", "remaining", "round", "sent_s", "slo", "speed", "start_s",
    )  # fmt: skip

    def __init__(self, number: int, scenario: Scenario, time: DraftTime, seed: int) -> None:
        self.number, self._scenario, self._time = number, scenario, time
        self._on_edge, self._link = scenario.system.drafting == "edge", scenario.deployment.link
        self._up_s, self._down_s = 0.0, self._link.rtt_s / 2 if self._on_edge else 0.0
        self._speculates = scenario.system.drafting != "none"
        self._random = Random(f"{seed}/{self._link.seed}/{number}")
        self._ask = scenario.arrivals.of_device(number, scenario.devices, self._random)
        self.slo = scenario.slo.place((number + 0.5) / scenario.devices)
        self.speed = scenario.slo.speeds[self.slo]
        self._sent_total, self._accepted_total = PRIOR_TOKENS, PRIOR_TOKENS * scenario.source.typical.acceptance
        self.remaining = self.cached = 0
        self.round, self.draft_s, self.first_s = _NOTHING, 0.0, inf

    def begin(self, finished_s: float) -> float:
        """Ask for the next response; returns when its first round reaches the server, infinity if there is none."""
        if not self._take(self._ask(finished_s)):
            return inf
        self.context, self._draft_cached = self.prompt, self.prompt - 1
        prefill_s = self._time.prefill_s(self.prompt) if self._on_edge else 0.0
        return self._send(max(self.start_s, finished_s), prefill_s, self.prompt)

    def begin_in_vain(self, end_s: float) -> bool:
        """Ask for a response that finds the device busy until the end; whether there is one."""
        asked = self._ask(inf)
        if asked.at_s > end_s or not self._take(asked):
            return False
        self.context = self.prompt
        return True

    def waiting(self, arrived_s: float) -> Waiting:
        """What the server sees of the round that was sent."""
        submitted = self.round.submitted if self._on_edge else 0
        expected = 1.0
        if self._speculates:
            expected += self.round.submitted * self._accepted_total / self._sent_total
        deadline_s = arrived_s + budget_s(expected, self.speed, self.draft_s, self._up_s + self._down_s)
        promised_s = self.start_s + (self.context - self.prompt + expected) / self.speed - self._down_s
        new = self.context - self.cached + submitted
        return Waiting(self.number, new, self.cached, arrived_s, deadline_s, expected, promised_s)

    def receive(self, ended_s: float, drafted: int | None) -> tuple[int, int]:
        """Take the answer, where the server drafted at most so many tokens; returns accepted and committed ones."""
        _, submitted, accepted, _ = self.round
        if drafted is not None and drafted < submitted:
            submitted, accepted = drafted, min(accepted, drafted)
        self._sent_total += submitted
        self._accepted_total += accepted
        committed = min(accepted + 1, self.remaining)
        self.remaining -= committed
        self._keep_drafts(accepted)
        self.context += committed
        crosses = self._on_edge or not self.remaining or self.first_s == inf
        down_s = self._link.message_s(accepted + 1, self._link.down_bytes_per_s, self._random) if crosses else 0.0
        self.answered_s = ended_s + down_s
        if self.first_s == inf:
            self.first_s = self.answered_s
        return accepted, committed

    def go_on(self) -> float:
        """Draft and send the next round of this response or of the next; returns when it reaches the server."""
        if not self.remaining:
            return self.begin(self.answered_s)
        return self._send(self._free_s() if self._on_edge else self.answered_s, 0.0, 0)

    def _take(self, asked: Asked) -> bool:
        """Begin the response that is asked for, if there is one."""
        if asked.at_s == inf:
            return False
        script = self._scenario.source.script(self._random)
        self.prompt, self.remaining = self._lengths(asked, script.prompt_tokens, script.output_tokens)
        self._rounds, self.start_s, self.first_s = script.rounds, asked.at_s, inf
        return True

    def _send(self, ready_s: float, prefill_s: float, prompt: int) -> float:
        self.round = next(self._rounds)
        submitted = 0
        if self._on_edge:
            steps, submitted, _, _ = self.round
            lacking = self.context - self._draft_cached
            self.draft_s = prefill_s + self._time.draft_s(steps, lacking, self._draft_cached)
        self.sent_s = ready_s + self.draft_s
        if not (self._on_edge or prompt):
            return self.sent_s
        up_s = self._link.message_s(prompt + submitted, self._link.up_bytes_per_s, self._random)
        if self._on_edge:
            self._up_s = up_s
        return self.sent_s + up_s

    def _keep_drafts(self, accepted: int) -> None:
        """The draft model has the accepted tokens that it forwarded, which the last one drafted never is."""
        if steps := self.round.steps:
            self._draft_cached = self.context + min(accepted, steps - 1)

    def _free_s(self) -> float:
        """When the device has its answer and has finished the forward that it began in the meantime."""
        if not self.round.proactive:
            return self.answered_s
        step_s = self._time.draft_s(1, 1, self.context)
        begun = ceil((self.answered_s - self.sent_s) / step_s)
        return max(self.answered_s, self.sent_s + min(begun, self.round.proactive) * step_s)

    def _lengths(self, asked: Asked, prompt: int | None, output: int | None) -> tuple[int, int]:
        scenario = self._scenario
        prompt = asked.prompt_tokens or scenario.prompt_tokens or prompt
        output = asked.output_tokens or scenario.output_tokens or output
        if prompt is None or output is None:
            raise SkitError(
                "neither arrivals nor acceptance know the lengths of a response: give prompt and output tokens"
            )
        scenario.check_lengths(prompt, output)
        return prompt, output
