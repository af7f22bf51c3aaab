"""What every device will do, as arrays, set up ahead as far as it does not depend on when the server answers."""

from collections.abc import Iterable
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import TOKEN_BYTES
from specbench_kit.serving.arrivals import NextRequests
from specbench_kit.serving.counter_rng import CounterRng, Floats, Integers, Purpose
from specbench_kit.serving.execution import Drafted, DraftTime
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.lengths import Lengths, LogNormalLengths
from specbench_kit.serving.round_rows import FIELDS, RoundRows
from specbench_kit.serving.round_sources import RoundArrays
from specbench_kit.serving.scenario import Scenario

Mask = NDArray[np.bool_]

AHEAD = 16
"""RoundArrays of each device that are set up at a time; what an array operation costs is then shared by many."""
PRIOR_TOKENS = 32.0
"""Sent tokens that a device is taken to have had accepted as often as the source's average, before any were sent."""


class RoundTable:
    """The rounds of all devices. A few of each stand in one table, in which a device has every n-th row."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        count, system = scenario.devices, scenario.system
        self._scenario, self.fleet = scenario, Fleet(scenario.kinds, count)
        self._on_edge, self._speculates = system.drafting == "edge", system.drafting != "none"
        self._down_s, *_ = self.fleet.link(np.arange(count), up=False)
        self._down_s /= 2
        self._server_drafts = system.drafting == "server"
        """How much is drafted then depends on the batch, so that only the next round can be set up."""
        self.times = [DraftTime(kind.deployment, scenario.learned) for kind in scenario.kinds]
        self._chances = CounterRng(f"{seed}/{scenario.deployment.link.seed}", count)
        self._depth = 2 if self._server_drafts else AHEAD
        self._rows = np.zeros((self._depth * count, len(FIELDS)))
        self._columns = RoundRows(self._rows)
        self.slo = np.array([scenario.slo.place((number + 0.5) / count) for number in range(count)])
        self.speed = np.asarray(scenario.slo.speeds)[self.slo]
        self._at = np.arange(count)
        """Where each device's present round stands."""
        self._left, self._made, self._responses, self._source_place = _zeros(4, count)
        """`_left` is how many rounds of those made were not answered."""
        self._prompt, self._context, self._remaining, self._draft_cached = _zeros(4, count)
        self._asked_s = np.zeros(count)
        self._sent = np.full(count, PRIOR_TOKENS)
        self._accepted = self._sent * self.fleet.acceptance
        typical = scenario.source.typical
        self._surety, self._longest = typical.surety, typical.longest
        self._set_up(np.arange(count))

    def present(self, devices: Integers) -> RoundRows:
        """The rounds that devices are at."""
        return RoundRows(self._rows.take(self._at[devices], axis=0))

    def answer(self, devices: Integers, drafted: Drafted) -> RoundRows:
        """What came of the present rounds, if the server drafted at most so many tokens; the next ones take over."""
        if self._server_drafts:
            self._conclude(devices, drafted)
            self._set_up(devices)
        elif self._left[devices].min() < 2:
            self._go_ahead()
        answered, at = self.present(devices), self._at[devices]
        self._at[devices] = (at + len(self._at)) % len(self._rows)
        self._left[devices] -= 1
        return answered

    def sureties(self, devices: Integers) -> Floats:
        """CounterRng of the tokens of the present drafts, [devices, tokens], as the draft model tells them."""
        numbers = self._made[devices] - self._left[devices]
        places = np.arange(self._longest)
        counts = (numbers[:, None] * self._longest + places).ravel()
        chance = self._chances.of(Purpose.SURETY, np.repeat(devices, self._longest), counts)
        accepted = self.present(devices)["accepted"].astype(np.int64)
        return self._surety.drawn(accepted, chance.reshape(len(devices), -1))

    def asked_in_vain(self, devices: Integers, until_s: float) -> list[tuple[int, float, int, int]]:
        """Device, time and lengths of the responses that are asked for before an end, behind the present ones."""
        present = self.present(devices)
        found: list[tuple[int, float, int, int]] = []
        numbers, before_s = present["response"].astype(np.int64) + 1, present["asked_s"]
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
        devices = np.flatnonzero(self._left < self._depth)
        while len(devices):
            self._conclude(devices, drafted)
            self._set_up(devices)
            devices = devices[self._left[devices] < self._depth]

    def _conclude(self, devices: Integers, drafted: Drafted) -> None:
        """What comes of the rounds that were set up last."""
        columns, at = self._columns, self._place(devices, self._made[devices] - 1)
        if drafted is not None:  # an array where requests differ
            for name in ("submitted", "accepted"):
                columns[name][at] = np.minimum(columns[name][at], drafted)
        accepted, steps = (columns[name][at].astype(np.int64) for name in ("accepted", "drafted"))
        context = self._context[devices]
        committed = np.minimum(accepted + 1, self._remaining[devices])
        self._sent[devices] += columns["submitted"][at]
        self._accepted[devices] += accepted
        # The draft model has the accepted tokens that it forwarded, which the last one drafted never is.
        drafts = context + np.minimum(accepted, steps - 1)
        self._draft_cached[devices] = np.where(steps > 0, drafts, self._draft_cached[devices])
        self._context[devices] = context + committed
        self._remaining[devices] -= committed
        ends = self._remaining[devices] == 0
        crosses = ends | (columns["begins"][at] > 0) | self._on_edge
        down_s = self._message_s(Purpose.DOWN, devices, (accepted + 1) * TOKEN_BYTES)
        columns["committed"][at], columns["ends"][at] = committed, ends
        columns["down_s"][at] = np.where(crosses, down_s, 0.0)

    def _set_up(self, devices: Integers) -> None:
        """One more round of each."""
        columns, numbers = self._columns, self._made[devices]
        at = self._place(devices, numbers)
        begins = self._remaining[devices] == 0
        columns["begins"][at], columns["at_s"][at], columns["gap_s"][at] = begins, -np.inf, 0.0
        if begins.any():
            self._begin(devices[begins], at[begins])
        chance = self._chances.of(Purpose.ROUND, devices, numbers)
        rounds, self._source_place[devices] = self.fleet.rounds(devices, self._source_place[devices], chance)
        columns["drafted"][at], columns["submitted"][at], columns["accepted"][at], columns["proactive"][at] = rounds
        columns["prompt"][at], columns["context"][at] = self._prompt[devices], self._context[devices]
        columns["tokens"][at] = self._context[devices] - self._prompt[devices] + self._remaining[devices]
        columns["response"][at], columns["asked_s"][at] = self._responses[devices] - 1, self._asked_s[devices]
        self._time(devices, at, begins, rounds)
        self._made[devices] += 1
        self._left[devices] += 1

    def _time(self, devices: Integers, at: Integers, begins: Mask, rounds: RoundArrays) -> None:
        """What the rounds take on device and link, and what they promise."""
        columns = self._columns
        draft_s, sent = np.zeros(len(devices)), np.where(begins, self._prompt[devices], 0)
        if self._on_edge:
            draft_s, sent = self._draft_s(devices, begins, rounds.steps), sent + rounds.submitted
        beside = self.fleet.draft_bytes[devices] * rounds.submitted if self._on_edge else np.zeros(len(devices))
        up_s = self._message_s(Purpose.UP, devices, sent * TOKEN_BYTES + beside)
        up_s = np.where(begins | self._on_edge, up_s, 0.0)
        expected, speed = np.ones(len(devices)), self.speed[devices]
        if self._speculates:
            expected += rounds.submitted * self._accepted[devices] / self._sent[devices]
        down_s = self._down_s[devices] if self._on_edge else 0.0
        network_s = up_s + down_s if self._on_edge else 0.0
        columns["draft_s"][at], columns["up_s"][at], columns["expected"][at] = draft_s, up_s, expected
        columns["slack_s"][at] = expected / speed - draft_s - network_s  # as slo.budget_s
        columns["promise_s"][at] = (self._context[devices] - self._prompt[devices] + expected) / speed - down_s

    def _draft_s(self, devices: Integers, begins: Mask, steps: Integers) -> Floats:
        cached = self._draft_cached[devices]
        rows = zip(steps.tolist(), (self._context[devices] - cached).tolist(), cached.tolist(), strict=True)
        draft_s = np.array([time.draft_s(*row) for time, row in zip(self.times_of(devices), rows, strict=False)])
        prompts = self._prompt[devices[begins]].tolist()
        begun = zip(self.times_of(devices[begins]), prompts, strict=False)
        draft_s[begins] += [time.prefill_s(prompt) for time, prompt in begun]
        return draft_s

    def times_of(self, devices: Integers) -> Iterable[DraftTime]:
        """What devices draft with, for each of them; without an end where all are of one kind."""
        if len(self.times) == 1:
            return repeat(self.times[0])
        return map(self.times.__getitem__, self.fleet.kind[devices].tolist())

    def _begin(self, devices: Integers, at: Integers) -> None:
        """The first round of the next response."""
        numbers, before_s = self._responses[devices], self._asked_s[devices]
        asked, prompts, tokens, self._source_place[devices] = self._ask(devices, numbers, before_s)
        self._columns["at_s"][at], self._columns["gap_s"][at] = asked.at_s, asked.gap_s
        self._asked_s[devices] = asked.at_s
        self._prompt[devices] = self._context[devices] = prompts
        self._draft_cached[devices], self._remaining[devices] = prompts - 1, tokens
        self._responses[devices] += 1

    def _ask(
        self, devices: Integers, numbers: Integers, before_s: Floats
    ) -> tuple[NextRequests, Integers, Integers, Integers]:
        """The responses of these numbers: their lengths, and where the source has their rounds."""
        scenario, chances = self._scenario, self._chances
        asked = scenario.arrivals.ask(
            devices, scenario.devices, numbers, before_s, chances.of(Purpose.ASK, devices, numbers)
        )
        begun = self.fleet.begin(devices, chances.of(Purpose.RESPONSE, devices, numbers))
        never = asked.at_s == np.inf
        prompt, output = (
            self._lengths(purpose, given, devices, numbers)
            for purpose, given in ((Purpose.PROMPT, scenario.prompt_tokens), (Purpose.OUTPUT, scenario.output_tokens))
        )
        prompts = _first_known(asked.prompt_tokens, prompt, begun.prompt_tokens, never)
        tokens = _first_known(asked.output_tokens, output, begun.output_tokens, never)
        if not (prompts.all() and tokens.all()):
            raise SkitError(
                "neither arrivals nor acceptance know the lengths of a response: give prompt and output tokens"
            )
        return asked, prompts, tokens, begun.place

    def _lengths(
        self, purpose: Purpose, given: Lengths | None, devices: Integers, numbers: Integers
    ) -> Integers | int | None:
        return (
            given.drawn(self._chances.of(purpose, devices, numbers)) if isinstance(given, LogNormalLengths) else given
        )

    def _message_s(self, purpose: Purpose, devices: Integers, size: Integers | Floats) -> Floats:
        rtt_s, jitter_s, bytes_per_s = self.fleet.link(devices, up=purpose is Purpose.UP)
        seconds: Floats = rtt_s / 2 + size / bytes_per_s
        if self.fleet.has_jitter:
            chance = self._chances.of(purpose, devices, self._made[devices])
            seconds = np.maximum(0.0, seconds + jitter_s * (2 * chance - 1))
        if self.fleet.has_loss:
            lost = Purpose.LOST_UP if purpose is Purpose.UP else Purpose.LOST_DOWN
            seconds = seconds + self.fleet.lost_s(devices, self._chances.of(lost, devices, self._made[devices]))
        return seconds

    def _place(self, devices: Integers, numbers: Integers) -> Integers:
        return numbers % self._depth * len(self._made) + devices


def _first_known(asked: Integers, scenario: Integers | int | None, source: Integers, never: Mask) -> Integers:
    """Lengths in tokens: those of the arrivals, else of the scenario, else of the source; 0 where none is known.

    Of a response that never comes, 1.
    """
    return np.where(never, 1, np.where(asked > 0, asked, source if scenario is None else scenario))


def _zeros(arrays: int, length: int) -> list[Integers]:
    return [np.zeros(length, dtype=np.int64) for _ in range(arrays)]
