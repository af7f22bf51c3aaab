"""The rounds of all devices, set up ahead as far as they do not depend on the server's answers.

Lengths, drafts, acceptance and link times of a device's next rounds follow from its random numbers
alone; only their start does not. So they are computed for all devices in blocks of array
operations, and the event loop looks them up.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import ClassVar, NamedTuple

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.serving.arrays import Floats, Integers, Mask
from specbench_kit.serving.arrivals import NextRequests
from specbench_kit.serving.counter_rng import CounterRng, Purpose
from specbench_kit.serving.execution import Drafted, DraftTime
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.lengths import NO_LENGTHS, Lengths, LogNormalLengths
from specbench_kit.serving.round_sources import (
    CHAIN,
    DRAW_RECORD,
    RoundArrays,
    place_of,
)
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.traced_drafts import TracedDrafts


class RoundColumn:
    """A field of `RoundRows`: reads as the view of its column, [rounds]."""

    number: int

    def __set_name__(self, owner: "type[RoundRows]", name: str) -> None:
        self.number = len(owner.FIELDS)
        owner.FIELDS.append(name)

    def __get__(self, rows: "RoundRows", owner: "type[RoundRows]") -> Floats:
        return rows.values[:, self.number]


class RoundRows:
    """Rounds of some devices: a row of the `values` per round, a column per field.

    `response` is the response's number on its device, `prompt` and `tokens` are its lengths, and `requested_s` is when
    its request arrived; a round that `begins` it starts at `earliest_s` or `gap_s` after the previous response (see
    `NextRequests`). `work` and `crosses` are those of `SimulatedRound`, `reads` is that of `DraftTime`. `context`
    counts the tokens before the round, `drafted` those that are drafted before it submits. The verifier has
    `round_budget_s` from the arrival of the draft to the round's deadline; the whole
    response is on schedule if the round is verified `response_budget_s` after the response's start. `submitted` and
    `accepted` may still shrink, and `committed` and `ends` are set, when the round is concluded.
    """

    __slots__ = ("values",)
    FIELDS: ClassVar[list[str]] = []
    """The names of the columns, in the order of `Field` in core.cpp."""

    response = RoundColumn()
    draft_s = RoundColumn()
    drafted = RoundColumn()
    submitted = RoundColumn()
    accepted = RoundColumn()
    committed = RoundColumn()
    context = RoundColumn()
    prompt = RoundColumn()
    tokens = RoundColumn()
    begins = RoundColumn()
    ends = RoundColumn()
    proactive = RoundColumn()
    requested_s = RoundColumn()
    earliest_s = RoundColumn()
    gap_s = RoundColumn()
    up_s = RoundColumn()
    down_s = RoundColumn()
    round_budget_s = RoundColumn()
    response_budget_s = RoundColumn()
    expected_tokens = RoundColumn()
    work = RoundColumn()
    crosses = RoundColumn()
    reads = RoundColumn()

    def __init__(self, values: Floats) -> None:
        self.values = values

    @property
    def recorded(self) -> Floats:
        """Return the fields `RECORDED`, in their order."""
        return self.values[:, : len(RECORDED)]


RECORDED = tuple(RoundRows.FIELDS[:6])
"""Fields that a simulation's result keeps of every round."""
AHEAD = 16
"""Rounds of each device in the table: the fixed cost of an array operation is shared by that
many.
"""
PRIOR_TOKENS = 32.0
"""Weight of the source's mean acceptance in a device's running estimate, in submitted tokens."""


class RoundOutcomes(NamedTuple):
    """What a real server made of one round of each of several devices: tokens submitted and
    accepted, [devices].
    """

    submitted: Integers
    accepted: Integers


class RoundTable:
    """A ring of rounds for each device: round n of device d stands in row n % depth * devices + d.

    If it `follows_answers`, a round's outcome is what the caller of `advance` says and not what the source says. If it
    `runs_free`, rounds begin at the server, without drafts until `submit` says what has arrived.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        follows_answers: bool = False,
        runs_free: bool = False,
    ) -> None:
        count = scenario.devices
        system = scenario.system
        self._scenario = scenario
        self.fleet = Fleet(scenario.kinds, count)
        self._on_edge = system.drafting == "edge"
        self._speculates = system.drafting != "none"
        self._half_rtt_s, *_ = self.fleet.link(np.arange(count), up=False)
        self._half_rtt_s /= 2
        # Where the outcome is known with the answer only, no more than the next round can be set
        # up: a server that drafts decides by its batch how much, and a real server decides which
        # tokens it accepts.
        self._next_only = system.drafting == "server" or follows_answers or runs_free
        self._runs_free = runs_free
        self._by_place = any(isinstance(kind.source, TracedDrafts) for kind in scenario.kinds)
        places = [place_of(kind.source) for kind in scenario.kinds]
        self._has_places = any(places)
        self._by_context, self._by_output = (
            np.array([place == by for place in places])[self.fleet.kind]
            for by in ("context", "output")
        )
        self.draft_times = [
            DraftTime(kind.deployment, kind.source.costs, kind.source.works)
            for kind in scenario.kinds
        ]
        self.random = CounterRng(f"{seed}/{scenario.deployment.link.seed}", count)
        self._depth = 2 if self._next_only else AHEAD
        self._rows = np.zeros((self._depth * count, len(RoundRows.FIELDS)))
        self._columns = RoundRows(self._rows)
        self.slo = np.array(
            [scenario.slo.class_index((number + 0.5) / count) for number in range(count)]
        )
        self.speed = np.asarray(scenario.slo.speeds)[self.slo]
        self._current_row = np.arange(count)
        self._pending, self._generated, self._responses, self._cursor = _zeros(4, count)
        """Rounds that were set up and not answered, all rounds set up, responses begun, and source
        cursors.
        """
        self._prompt, self._context, self._remaining, self._draft_cached = _zeros(4, count)
        """State behind the last round set up: tokens of the prompt, in context, still to commit, in
        the draft's KV.
        """
        self._continued = np.zeros(count, dtype=bool)
        """True for devices whose responses are longer than their records, and go on with other
        ones.
        """
        self._requested_s = np.zeros(count)
        self._submitted = np.full(count, PRIOR_TOKENS)
        self._accepted = self._submitted * self.fleet.acceptance
        typical = scenario.source.typical
        self._confidence = typical.confidence
        self._longest = typical.longest
        self._set_up(np.arange(count))

    def current(self, devices: Integers) -> RoundRows:
        """Return the rounds that the devices are at."""
        return RoundRows(self._rows.take(self._current_row[devices], axis=0))

    def advance(
        self, devices: Integers, drafted: Drafted, outcomes: RoundOutcomes | None = None
    ) -> RoundRows:
        """Return the outcome of the current rounds, and move the devices on to their next ones.

        `drafted` is the most tokens that the server drafted for each request, if it drafts. `outcomes` replace those of
        the source, in a table that follows answers.
        """
        if self._next_only:
            self._conclude(devices, drafted, outcomes)
            self._set_up(devices)
        elif self._pending[devices].min() < 2:
            self._set_up_block()
        answered = self.current(devices)
        row = self._current_row[devices]
        self._current_row[devices] = (row + len(self._current_row)) % len(self._rows)
        self._pending[devices] -= 1
        return answered

    def submit(self, devices: Integers, submitted: Integers) -> None:
        """Let the current rounds of devices that run free verify the tokens that have reached the
        server.
        """
        rows = self._current_row[devices]
        columns = self._columns
        more = submitted * self._accepted[devices] / self._submitted[devices]
        columns.submitted[rows] = submitted
        columns.expected_tokens[rows] += more
        for budget_s in (columns.round_budget_s, columns.response_budget_s):
            budget_s[rows] += more / self.speed[devices]

    def place(self, device: int) -> int:
        """Return the source's cursor of a device."""
        return int(self._cursor[device])

    def constants(self) -> Sequence[Floats]:
        """Return what the compiled event loop needs of every device, in the order of `PerDevice` in
        core.cpp.

        The last two are the sums of the running estimate of acceptance before the first round is
        answered.
        """
        everyone = np.arange(len(self._generated))
        up, down = self.fleet.link(everyone, up=True), self.fleet.link(everyone, up=False)
        sums = self._submitted, self._accepted
        return (*up, down[2], self.fleet.draft_bytes, self.speed, self._half_rtt_s, *sums)

    def first_rows(self) -> Floats:
        """Return the rows [devices, fields] into which the compiled event loop writes the rounds of
        all devices.
        """
        self._current_row = np.arange(len(self._generated))
        return self._rows[: len(self._generated)]

    def confidences(self, devices: Integers) -> Floats:
        """Return the draft model's confidences in the tokens of the current drafts, [devices,
        tokens].
        """
        numbers = self._generated[devices] - self._pending[devices]
        counts = (numbers[:, None] * self._longest + np.arange(self._longest)).ravel()
        uniform = self.random.uniform(Purpose.CONFIDENCE, np.repeat(devices, self._longest), counts)
        accepted = self.current(devices).accepted.astype(np.int64)
        return self._confidence.reported(accepted, uniform.reshape(len(devices), -1))

    def queued_requests(
        self, devices: Integers, until_s: float
    ) -> list[tuple[int, float, int, int]]:
        """Return (device, arrival, prompt, output tokens) of requests up to `until_s` behind the
        current responses.
        """
        current = self.current(devices)
        queued: list[tuple[int, float, int, int]] = []
        numbers = current.response.astype(np.int64) + 1
        previous_s = current.requested_s
        while len(devices):
            requests, prompts, tokens, _ = self.next_requests(devices, numbers, previous_s)
            arrive = np.isfinite(requests.at_s) & (requests.at_s <= until_s)
            devices = devices[arrive]
            numbers = numbers[arrive] + 1
            previous_s = requests.at_s[arrive]
            columns = (devices, previous_s, prompts[arrive], tokens[arrive])
            queued += zip(*(column.tolist() for column in columns), strict=True)
        return queued

    def _set_up_block(self) -> None:
        """Set up rounds of all devices as far as the table has room for them."""
        drafted = None if self._speculates else 0
        devices = np.flatnonzero(self._pending < self._depth)
        while len(devices):
            self._conclude(devices, drafted)
            self._set_up(devices)
            devices = devices[self._pending[devices] < self._depth]

    def _conclude(
        self, devices: Integers, drafted: Drafted, outcomes: RoundOutcomes | None = None
    ) -> None:
        """Fill in the outcome of the last rounds set up, on which the next ones build."""
        columns = self._columns
        rows = self._rows_of(devices, self._generated[devices] - 1)
        if outcomes is not None:
            columns.submitted[rows], columns.accepted[rows] = outcomes
        if drafted is not None:  # an array if it differs between requests
            for counts in (columns.submitted, columns.accepted):
                counts[rows] = np.minimum(counts[rows], drafted)
        accepted, steps = (
            counts[rows].astype(np.int64) for counts in (columns.accepted, columns.drafted)
        )
        context = self._context[devices]
        committed = np.minimum(accepted + 1, self._remaining[devices])
        self._submitted[devices] += columns.submitted[rows]
        self._accepted[devices] += accepted
        # The draft model's KV holds the accepted tokens that it forwarded; the last drafted token
        # it never forwards. A device that drafts while it waits reads meanwhile what it has not
        # read.
        ahead = columns.proactive[rows] > 0
        draft_cached = np.where(ahead, context + accepted, self._draft_cached[devices])
        self._draft_cached[devices] = np.where(
            steps > 0, context + np.minimum(accepted, steps - 1), draft_cached
        )
        self._context[devices] = context + committed
        self._remaining[devices] -= committed
        if self._by_place:
            self._cursor[devices] += committed
        ends = self._remaining[devices] == 0
        crosses = columns.crosses[rows] > 0
        down_s = self._message_s(Purpose.DOWN, devices, (accepted + 1) * TOKEN_BYTES)
        columns.committed[rows], columns.ends[rows] = committed, ends
        columns.down_s[rows] = np.where(crosses, down_s, 0.0)

    def _set_up(self, devices: Integers) -> None:
        """Set up one more round of each device."""
        columns = self._columns
        numbers = self._generated[devices]
        rows = self._rows_of(devices, numbers)
        begins = self._remaining[devices] == 0
        columns.begins[rows], columns.earliest_s[rows], columns.gap_s[rows] = (
            begins,
            -np.inf,
            0.0,
        )
        if begins.any():
            self._begin_responses(devices[begins], rows[begins])
        self._continued[devices] |= self._cursor[devices] == DRAW_RECORD
        uniform = self.random.uniform(Purpose.ROUND, devices, numbers)
        cursor = self._cursor[devices]
        if self._has_places:
            context, prompt = self._context[devices], self._prompt[devices]
            cursor = np.select(
                [self._by_context[devices], self._by_output[devices]],
                [context, context - prompt],
                cursor,
            )
        rounds, self._cursor[devices] = self.fleet.rounds(devices, cursor, uniform)
        columns.drafted[rows], columns.submitted[rows] = rounds.steps, rounds.submitted
        columns.accepted[rows], columns.proactive[rows] = rounds.accepted, rounds.proactive
        columns.work[rows], columns.reads[rows] = rounds.work, ~self._continued[devices]
        # Where the server drafts, the answers behind the first are streamed, and nobody waits for
        # them.
        columns.crosses[rows] = begins | ((rounds.crosses > 0) & self._on_edge)
        columns.prompt[rows], columns.context[rows] = (
            self._prompt[devices],
            self._context[devices],
        )
        columns.tokens[rows] = (
            self._context[devices] - self._prompt[devices] + self._remaining[devices]
        )
        columns.response[rows], columns.requested_s[rows] = (
            self._responses[devices] - 1,
            self._requested_s[devices],
        )
        self._set_times(devices, rows, begins, rounds)
        self._generated[devices] += 1
        self._pending[devices] += 1

    def _begin_responses(self, devices: Integers, rows: Integers) -> None:
        numbers = self._responses[devices]
        previous_s = self._requested_s[devices]
        requests, prompts, tokens, self._cursor[devices] = self.next_requests(
            devices, numbers, previous_s
        )
        self._columns.earliest_s[rows], self._columns.gap_s[rows] = (
            requests.at_s,
            requests.gap_s,
        )
        self._requested_s[devices] = requests.at_s
        self._prompt[devices] = self._context[devices] = prompts
        self._draft_cached[devices], self._remaining[devices] = prompts - 1, tokens
        self._responses[devices] += 1
        self._continued[devices] = False

    def _set_times(
        self, devices: Integers, rows: Integers, begins: Mask, rounds: RoundArrays
    ) -> None:
        """Set what the rounds take on device and uplink, and the budgets that the SLO leaves
        them.
        """
        columns = self._columns
        draft_s = np.zeros(len(devices))
        sent = np.where(begins, self._prompt[devices], 0)
        draft_bytes = np.zeros(len(devices))
        if self._on_edge and not self._runs_free:
            draft_s = self._draft_s(devices, begins, rounds)
            sent = sent + rounds.submitted
            draft_bytes = self.fleet.draft_bytes[devices] * rounds.submitted
        up_s = self._message_s(Purpose.UP, devices, sent * TOKEN_BYTES + draft_bytes)
        crosses = columns.crosses[rows] > 0
        up_s = np.where(begins | (crosses & (not self._runs_free)), up_s, 0.0)
        expected = np.ones(len(devices))
        speed = self.speed[devices]
        if self._speculates:
            # Policies know the mean acceptance of the device so far, never the outcome of this
            # round.
            expected += rounds.submitted * self._accepted[devices] / self._submitted[devices]
        # The answer counts when it is back at the device, so its way down comes off what the server
        # may take. That way is not drawn before the round ends: half a nominal round trip stands
        # for it.
        down_s = self._half_rtt_s[devices] * crosses if self._on_edge else 0.0
        # Tokens that nobody waits for are all late by as much: no round but the first loses time on
        # the link.
        network_s = (up_s + down_s) * (begins | (not self._runs_free)) if self._on_edge else 0.0
        columns.draft_s[rows], columns.up_s[rows], columns.expected_tokens[rows] = (
            draft_s,
            up_s,
            expected,
        )
        columns.round_budget_s[rows] = (
            expected / speed - draft_s - network_s
        )  # as slo.verification_budget_s
        committed = self._context[devices] - self._prompt[devices]
        columns.response_budget_s[rows] = (committed + expected) / speed - down_s

    def _draft_s(self, devices: Integers, begins: Mask, rounds: RoundArrays) -> Floats:
        """Return the seconds of drafting on the devices, and of reading the prompt on those that
        have to.
        """
        times = self.draft_times_of(devices)
        contexts, cached = self._context[devices].tolist(), self._draft_cached[devices].tolist()
        works, steps = rounds.work.tolist(), rounds.steps.tolist()
        reads = (~self._continued[devices]).tolist()
        draft_s = np.empty(len(devices))
        for index, (time, context) in enumerate(zip(times, contexts, strict=False)):
            if works[index] == CHAIN:
                draft_s[index] = time.draft_s(steps[index], context - cached[index], cached[index])
            else:
                draft_s[index] = time.before_s(works[index], int(reads[index]), context)
        prompt = begins & (rounds.work == CHAIN) & ((rounds.steps > 0) | (rounds.proactive == 0))
        beginning = zip(
            self.draft_times_of(devices[prompt]),
            self._prompt[devices[prompt]].tolist(),
            strict=False,
        )
        draft_s[prompt] += [time.prefill_s(tokens) for time, tokens in beginning]
        return draft_s

    def draft_times_of(self, devices: Integers) -> Iterable[DraftTime]:
        """Return the draft times of each device; endlessly the same one if all devices are of one
        kind.
        """
        if len(self.draft_times) == 1:
            return repeat(self.draft_times[0])
        return map(self.draft_times.__getitem__, self.fleet.kind[devices].tolist())

    def next_requests(
        self, devices: Integers, numbers: Integers, previous_s: Floats
    ) -> tuple[NextRequests, Integers, Integers, Integers]:
        """Return the requests with these numbers, their prompt and output lengths, and the source's
        cursors.
        """
        scenario = self._scenario
        random = self.random
        requests = scenario.arrivals.next_requests(
            devices,
            scenario.devices,
            numbers,
            previous_s,
            random.uniform(Purpose.REQUEST, devices, numbers),
        )
        starts = self.fleet.begin(devices, random.uniform(Purpose.RESPONSE, devices, numbers))

        def lengths(
            purpose: Purpose, stated: Lengths | None, traced: Integers, recorded: Integers
        ) -> Integers:
            """Return the lengths that the arrivals state, else the scenario, else the source; 1 if
            none ever comes.
            """
            own = recorded if stated is None else stated
            if isinstance(own, LogNormalLengths):
                own = own.sample(random.uniform(purpose, devices, numbers))
            return np.where(requests.at_s == np.inf, 1, np.where(traced > 0, traced, own))

        prompts = lengths(
            Purpose.PROMPT, scenario.prompt_tokens, requests.prompt_tokens, starts.prompt_tokens
        )
        tokens = lengths(
            Purpose.OUTPUT, scenario.output_tokens, requests.output_tokens, starts.output_tokens
        )
        if not (prompts.all() and tokens.all()):
            raise SkitError(NO_LENGTHS)
        return requests, prompts, tokens, starts.cursor

    def _message_s(self, purpose: Purpose, devices: Integers, size: Integers | Floats) -> Floats:
        """Return the seconds that one message of `size` bytes per device takes, with jitter and
        lost copies.
        """
        rtt_s, jitter_s, bytes_per_s = self.fleet.link(devices, up=purpose is Purpose.UP)
        seconds: Floats = rtt_s / 2 + size / bytes_per_s
        if self.fleet.has_jitter:
            uniform = self.random.uniform(purpose, devices, self._generated[devices])
            seconds = np.maximum(0.0, seconds + jitter_s * (2 * uniform - 1))
        if self.fleet.has_loss:
            lost = Purpose.LOST_UP if purpose is Purpose.UP else Purpose.LOST_DOWN
            uniform = self.random.uniform(lost, devices, self._generated[devices])
            seconds = seconds + self.fleet.retransmission_s(devices, uniform)
        return seconds

    def _rows_of(self, devices: Integers, numbers: Integers) -> Integers:
        return numbers % self._depth * len(self._generated) + devices


def _zeros(arrays: int, length: int) -> list[Integers]:
    return [np.zeros(length, dtype=np.int64) for _ in range(arrays)]
