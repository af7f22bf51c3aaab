"""What every device will do, as arrays, set up ahead as far as it does not depend on when the server answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.deployments.base import TOKEN_BYTES
from specbench_kit.errors import SkitError
from specbench_kit.serving.acceptance import Rounds
from specbench_kit.serving.arrivals import Asks
from specbench_kit.serving.chances import Chances, Floats, Integers, Purpose
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.slo import budget_s
from specbench_kit.serving.timing import DraftTime

AHEAD = 16
"""Rounds of each device that are set up at a time; what an array operation costs is then shared by many."""
PRIOR_TOKENS = 32.0
"""Sent tokens that a device is taken to have had accepted as often as the source's average, before any were sent."""

_WHOLE = ("response", "prompt", "tokens", "context", "steps", "submitted", "accepted", "proactive", "committed")
_NUMBERS = ("asked_s", "at_s", "gap_s", "draft_s", "up_s", "down_s", "slack_s", "promise_s", "expected")
_FLAGS = ("begins", "ends")


class Scripts:
    """Rounds of all devices, in columns; `place` says where a device's round stands in them.

    `prompt` and `tokens` are its response's, `context` is the tokens before it; it `begins` or `ends` a response, which
    is asked for as `Asks` says. `slack_s` is what its deadline leaves the server, `promise_s` when its answer is due
    after the response's start.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        count, system = scenario.devices, scenario.system
        self._scenario, self._link = scenario, scenario.deployment.link
        self._on_edge, self._speculates = system.drafting == "edge", system.drafting != "none"
        self._down_s = self._link.rtt_s / 2
        self._server_drafts = system.drafting == "server"
        """How much is drafted then depends on the batch, so that only the next round can be set up."""
        self.time = DraftTime(scenario.deployment, scenario.learned)
        self._chances = Chances(f"{seed}/{self._link.seed}", count)
        self._depth = 2 if self._server_drafts else AHEAD
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(self._depth * count, dtype)
            for names, dtype in ((_WHOLE, np.int32), (_NUMBERS, np.float64), (_FLAGS, np.bool_))
            for name in names
        }
        self.slo = np.array([scenario.slo.place((number + 0.5) / count) for number in range(count)])
        self.speed = np.asarray(scenario.slo.speeds)[self.slo]
        self._current, self._made, self._responses, self._source_place = _zeros(4, count)
        self._prompt, self._context, self._remaining, self._draft_cached = _zeros(4, count)
        self._asked_s = np.zeros(count)
        self._sent = np.full(count, PRIOR_TOKENS)
        self._accepted = self._sent * scenario.source.typical.acceptance
        self._set_up(np.arange(count))

    def place(self, devices: Integers) -> Integers:
        """Where the devices' present rounds stand in the columns."""
        return self._place(devices, self._current[devices])

    def go_on(self, devices: Integers, drafted: int | None) -> None:
        """The present rounds are answered, where the server drafted at most so many tokens; the next ones take over.

        Only now the outcome of the answered ones stands in their columns, until devices go on once more.
        """
        if self._server_drafts:
            self._conclude(devices, drafted)
            self._set_up(devices)
        elif (self._made[devices] < self._current[devices] + 2).any():
            self._go_ahead()
        self._current[devices] += 1

    def asked_in_vain(self, devices: Integers, until_s: float) -> list[tuple[int, float, int, int]]:
        """Device, time and lengths of the responses that are asked for before an end, behind the present ones."""
        columns, found = self.columns, []
        at = self.place(devices)
        numbers, before_s = columns["response"][at] + 1, columns["asked_s"][at]
        while len(devices):
            asked, prompts, tokens, _ = self._ask(devices, numbers, before_s)
            here = np.isfinite(asked.at_s) & (asked.at_s <= until_s)
            devices, numbers, before_s = devices[here], numbers[here] + 1, asked.at_s[here]
            rows = (devices, before_s, prompts[here], tokens[here])
            found += zip(*(column.tolist() for column in rows), strict=True)
        return found

    def _go_ahead(self) -> None:
        """Set up rounds of all devices as far as there is room for them."""
        drafted = None if self._speculates else 0
        devices = np.flatnonzero(self._made - self._current < self._depth)
        while len(devices):
            self._conclude(devices, drafted)
            self._set_up(devices)
            devices = devices[self._made[devices] - self._current[devices] < self._depth]

    def _conclude(self, devices: Integers, drafted: int | None) -> None:
        """What comes of the rounds that were set up last."""
        columns, at = self.columns, self._place(devices, self._made[devices] - 1)
        if drafted is not None:
            for name in ("submitted", "accepted"):
                columns[name][at] = np.minimum(columns[name][at], drafted)
        accepted, steps, context = columns["accepted"][at], columns["steps"][at], self._context[devices]
        committed = np.minimum(accepted + 1, self._remaining[devices])
        self._sent[devices] += columns["submitted"][at]
        self._accepted[devices] += accepted
        # The draft model has the accepted tokens that it forwarded, which the last one drafted never is.
        drafts = context + np.minimum(accepted, steps - 1)
        self._draft_cached[devices] = np.where(steps > 0, drafts, self._draft_cached[devices])
        self._context[devices] = context + committed
        self._remaining[devices] -= committed
        ends = self._remaining[devices] == 0
        crosses = ends | columns["begins"][at] | self._on_edge
        down_s = self._message_s(Purpose.DOWN, devices, accepted + 1, self._link.down_bytes_per_s)
        columns["committed"][at], columns["ends"][at] = committed, ends
        columns["down_s"][at] = np.where(crosses, down_s, 0.0)

    def _set_up(self, devices: Integers) -> None:
        """One more round of each."""
        columns, numbers = self.columns, self._made[devices]
        at = self._place(devices, numbers)
        begins = self._remaining[devices] == 0
        columns["begins"][at], columns["at_s"][at], columns["gap_s"][at] = begins, -np.inf, 0.0
        if begins.any():
            self._begin(devices[begins], at[begins])
        chance = self._chances.of(Purpose.ROUND, devices, numbers)
        rounds, self._source_place[devices] = self._scenario.source.rounds(self._source_place[devices], chance)
        columns["steps"][at], columns["submitted"][at], columns["accepted"][at], columns["proactive"][at] = rounds
        columns["prompt"][at], columns["context"][at] = self._prompt[devices], self._context[devices]
        columns["tokens"][at] = self._context[devices] - self._prompt[devices] + self._remaining[devices]
        columns["response"][at], columns["asked_s"][at] = self._responses[devices] - 1, self._asked_s[devices]
        self._time(devices, at, rounds)
        self._made[devices] += 1

    def _time(self, devices: Integers, at: Integers, rounds: Rounds) -> None:
        """What the rounds take on device and link, and what they promise."""
        columns, begins = self.columns, self.columns["begins"][at]
        draft_s, sent = np.zeros(len(devices)), np.where(begins, self._prompt[devices], 0)
        if self._on_edge:
            draft_s, sent = self._draft_s(devices, begins, rounds.steps), sent + rounds.submitted
        up_s = self._message_s(Purpose.UP, devices, sent, self._link.up_bytes_per_s)
        up_s = np.where(begins | self._on_edge, up_s, 0.0)
        expected, speed = np.ones(len(devices)), self.speed[devices]
        if self._speculates:
            expected += rounds.submitted * self._accepted[devices] / self._sent[devices]
        network_s, down_s = (up_s + self._down_s, self._down_s) if self._on_edge else (0.0, 0.0)
        columns["draft_s"][at], columns["up_s"][at], columns["expected"][at] = draft_s, up_s, expected
        columns["slack_s"][at] = budget_s(expected, speed, draft_s, network_s)
        columns["promise_s"][at] = (self._context[devices] - self._prompt[devices] + expected) / speed - down_s

    def _draft_s(self, devices: Integers, begins: Integers, steps: Integers) -> Floats:
        cached = self._draft_cached[devices]
        rows = zip(steps.tolist(), (self._context[devices] - cached).tolist(), cached.tolist(), strict=True)
        draft_s = np.array([self.time.draft_s(*row) for row in rows])
        draft_s[begins] += [self.time.prefill_s(prompt) for prompt in self._prompt[devices[begins]].tolist()]
        return draft_s

    def _begin(self, devices: Integers, at: Integers) -> None:
        """The first round of the next response."""
        numbers, before_s = self._responses[devices], self._asked_s[devices]
        asked, prompts, tokens, self._source_place[devices] = self._ask(devices, numbers, before_s)
        self.columns["at_s"][at], self.columns["gap_s"][at] = asked.at_s, asked.gap_s
        self._asked_s[devices] = asked.at_s
        self._prompt[devices] = self._context[devices] = prompts
        self._draft_cached[devices], self._remaining[devices] = prompts - 1, tokens
        self._responses[devices] += 1

    def _ask(self, devices: Integers, numbers: Integers, before_s: Floats) -> tuple[Asks, Integers, Integers, Integers]:
        """The responses of these numbers: their lengths, and where the source has their rounds."""
        scenario, chances = self._scenario, self._chances
        asked = scenario.arrivals.ask(
            devices, scenario.devices, numbers, before_s, chances.of(Purpose.ASK, devices, numbers)
        )
        begun = scenario.source.begin(chances.of(Purpose.RESPONSE, devices, numbers))
        never = asked.at_s == np.inf
        prompts = _first_known(asked.prompt_tokens, scenario.prompt_tokens, begun.prompt_tokens, never)
        tokens = _first_known(asked.output_tokens, scenario.output_tokens, begun.output_tokens, never)
        if not (prompts.all() and tokens.all()):
            raise SkitError(
                "neither arrivals nor acceptance know the lengths of a response: give prompt and output tokens"
            )
        return asked, prompts, tokens, begun.place

    def _message_s(self, purpose: Purpose, devices: Integers, tokens: Integers, bytes_per_s: float) -> Floats:
        link, numbers = self._link, self._made[devices]
        seconds = link.rtt_s / 2 + tokens * TOKEN_BYTES / bytes_per_s
        if link.jitter_s:
            chance = self._chances.of(purpose, devices, numbers)
            seconds = np.maximum(0.0, seconds + link.jitter_s * (2 * chance - 1))
        return seconds

    def _place(self, devices: Integers, numbers: Integers) -> Integers:
        return numbers % self._depth * len(self._made) + devices


def _first_known(asked: Integers, scenario: int | None, source: Integers, never: NDArray[np.bool_]) -> Integers:
    """Lengths in tokens: those of the arrivals, else of the scenario, else of the source; 0 where none is known.

    Of a response that never comes, 1.
    """
    return np.where(never, 1, np.where(asked > 0, asked, scenario or source))


def _zeros(arrays: int, length: int) -> list[Integers]:
    return [np.zeros(length, dtype=np.int64) for _ in range(arrays)]
