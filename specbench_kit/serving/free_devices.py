"""Devices that draft and send without waiting, beside a server that never waits for them (the
method `decoupled`).

A round's draft is what has reached the server when a batch begins, so that rounds cannot be set up
ahead as those of all other methods are: each one depends on when the one before was verified.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.deployments.drafting_work import RoundWork
from specbench_kit.methods.base import SendsAhead
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.execution import DraftTime
from specbench_kit.serving.round_sources import CHAIN, RecordedAnswers, RecordedRounds, RoundArrays
from specbench_kit.serving.round_table import RoundOutcomes, RoundRows, RoundTable
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.systems.base import DraftingPlace
from specbench_kit.traces.trace import RequestTrace


class RightTokens(RecordedAnswers):
    """Recorded answers, of which it is known for every token whether the draft model drafts it.

    Averages are those of the rounds of one request `alone`. A response that is longer than its
    record goes on with the next one.
    """

    def __init__(
        self, traces: Iterable[RequestTrace], ahead: SendsAhead, alone: RecordedRounds
    ) -> None:
        answers = [trace for trace in traces if trace.output_ids]
        right = [trace.drafted[:, 0] == trace.output_ids for trace in answers]
        self.ahead = ahead
        self.costs = alone.costs
        self.works: Sequence[RoundWork] = ()
        self.typical = alone.typical
        self.colocated_ratio = alone.colocated_ratio
        lengths = [(len(trace.prompt_ids), len(trace.output_ids)) for trace in answers]
        ends = np.cumsum([output for _, output in lengths])
        super().__init__(lengths, ends - [output for _, output in lengths])
        self._wrong = np.flatnonzero(~np.concatenate(right))

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        """Return rounds without drafts, and where the answers began; `FreeRuns` says what has
        reached the server.
        """
        nothing = np.zeros_like(cursor)
        return RoundArrays(nothing, nothing, nothing, nothing, nothing + CHAIN, nothing + 1), cursor

    def right_from(self, place: int) -> int:
        """Return how many tokens in a row are right from a place in the answers on, which follow
        each other.
        """
        total = int(self._lengths[1].sum())
        if not len(self._wrong):
            return total
        place %= total
        index = int(np.searchsorted(self._wrong, place))
        return (
            int(self._wrong[index]) - place
            if index < len(self._wrong)
            else total - place + int(self._wrong[0])
        )


@dataclass(slots=True)
class _Run:
    """What a device drafts from one place on.

    `first` are the tokens in context when it began, `right` how many drafted ones the target agrees with, `cached` the
    tokens in the draft model's KV when it began. `times_s` are when tokens are drafted, `work_s` what each takes;
    answers have counted `told` of them.
    """

    first: int
    right: int
    cached: int
    times_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    told: int = 0


def free_running(scenario: Scenario) -> Sequence[RightTokens]:
    """Return the sources of a scenario whose devices send drafts without waiting, one of each kind;
    empty for others.

    Raise SkitError for a scene that such devices cannot be simulated in.
    """
    sources = [kind.source for kind in scenario.kinds]
    free = [source for source in sources if isinstance(source, RightTokens)]
    if not free:
        return ()
    require(len(free) == len(sources), f"{DECOUPLED}: give no acceptance to a part of --fleet")
    require_on_devices(scenario.system.drafting)
    require(
        not scenario.network.delays_messages,
        f"{DECOUPLED}: leave out the trace of the link, and what is shared of it",
    )
    return free if scenario.system.drafting == "edge" else ()


def require_on_devices(drafting: DraftingPlace) -> None:
    """Raise SkitError for a system that drafts on its server, where nothing is sent."""
    require(
        drafting != "server", f"{DECOUPLED}: it drafts on devices, and this system on the server"
    )


DECOUPLED = (
    "a method that sends drafts without waiting is simulated with devices that all do so, over "
    "links of their own"
)


class FreeRuns:
    """What every device of a scenario drafts, and what of it has reached the server.

    Tokens are drafted as long as no more than the method's chunks are unanswered. A chunk is sent
    when it is drafted; its message takes the link's time without jitter and loss. A wrong token, or
    one that the server computes before it was drafted, lets the device draft anew when it hears of
    it.
    """

    def __init__(
        self, scenario: Scenario, sources: Sequence[RightTokens], table: RoundTable
    ) -> None:
        self._table = table
        self._sources = sources
        self._links = [kind.deployment.link for kind in scenario.kinds]
        self._runs = [_Run(0, 0, 0) for _ in range(scenario.devices)]
        self._next: list[tuple[float, int]] = [(np.inf, 0)] * scenario.devices
        """When the next chunk for the text that the server has of each device arrives there, and
        its tokens.
        """

    def begin(self, devices: Integers, start_s: Floats) -> None:
        """Let devices read the prompts of their current responses from these times on, and
        draft.
        """
        rows = self._table.current(devices)
        for device, at_s, prompt in zip(
            devices.tolist(), start_s.tolist(), rows.prompt.tolist(), strict=True
        ):
            if at_s == np.inf:
                continue
            times, _ = self._parts(device)
            self._begin_anew(
                device, int(prompt), int(prompt) - 1, at_s + times.prefill_s(int(prompt))
            )

    def take_arrived(self, device: int, now_s: float, most: float = np.inf) -> int:
        """Return how many tokens have reached the server for a device's waiting round; 0 if they
        are more than `most`.

        They count as submitted.
        """
        arrives_s, tokens = self._next[device]
        if arrives_s > now_s or tokens > most:
            return 0
        self._next[device] = np.inf, 0
        self._table.submit(np.array([device]), np.array([tokens]))
        return tokens

    def outcomes(self, devices: Integers) -> RoundOutcomes:
        """Return what the target accepts of the current rounds."""
        rows = self._table.current(devices)
        submitted = rows.submitted.astype(np.int64)
        verified = rows.context.astype(np.int64)
        left = [self._runs[device].first + self._runs[device].right for device in devices.tolist()]
        accepted = np.minimum(submitted, np.maximum(np.array(left) - verified, 0))
        return RoundOutcomes(submitted, accepted)

    def answer(
        self, devices: Integers, rows: RoundRows, ended_s: Floats, answered_s: Floats
    ) -> None:
        """Let devices hear of their answered rounds, and the server take what has arrived for the
        next ones.

        The rows are told what was drafted until then.
        """
        tokens = (rows.context + rows.committed).astype(np.int64).tolist()
        for index, (device, at_s) in enumerate(
            zip(devices.tolist(), answered_s.tolist(), strict=True)
        ):
            run = self._runs[device]
            drafted = bisect_right(run.times_s, at_s)
            passed = tokens[index] - run.first
            ends = bool(rows.ends[index])
            goes_on = passed <= min(run.right, drafted)
            # A forward that is under way comes to its end; a device may still be busy with one of
            # the run before.
            next_s = (
                run.times_s[drafted] - run.work_s[drafted] if drafted < len(run.times_s) else at_s
            )
            under_way = next_s < at_s
            done = drafted + (under_way and not (goes_on or ends))
            rows.drafted[index], rows.draft_s[index] = (
                done - run.told,
                sum(run.work_s[run.told : done]),
            )
            run.told = done
            self._next[device] = np.inf, 0
            if ends:
                continue
            if goes_on:
                self._go_on(device, passed, at_s)
            else:
                cached = run.first + min(run.right, passed, done - 1) if done else run.cached
                free_s = run.times_s[drafted] if under_way else max(at_s, next_s)
                self._begin_anew(device, tokens[index], min(cached, tokens[index] - 1), free_s)
            # A scheduler chooses by what the server has by now; what arrives until its batch begins
            # comes on top.
            self.take_arrived(device, float(ended_s[index]))

    def _go_on(self, device: int, passed: int, answered_s: float) -> None:
        """Let a device draft on, `passed` of whose tokens are the text by now."""
        run = self._runs[device]
        times, source = self._parts(device)
        self._draft(run, times, answered_s, passed + source.ahead.longest)
        self._send(device, passed)

    def _send(self, device: int, passed: int) -> None:
        """Note when the rest of the chunk arrives of which the first `passed` tokens of a run do
        not count any more.
        """
        chunk = self._parts(device)[1].ahead.chunk
        end = passed + chunk - passed % chunk
        link = self._links[int(self._table.fleet.kind[device])]
        size = end - passed
        crossing_s = link.nominal_s(size, link.up_bytes_per_s, size * link.draft_bytes)
        self._next[device] = self._runs[device].times_s[end - 1] + crossing_s, size

    def _begin_anew(self, device: int, tokens: int, cached: int, from_s: float) -> None:
        """Let a device draft behind so many tokens of context, `cached` of which it has read."""
        times, source = self._parts(device)
        prompt = int(self._table.current(np.array([device])).prompt[0])
        run = _Run(tokens, source.right_from(self._table.place(device) + tokens - prompt), cached)
        self._draft(run, times, from_s, source.ahead.longest)
        self._runs[device] = run
        self._send(device, 0)

    def _draft(self, run: _Run, times: DraftTime, from_s: float, longest: int) -> None:
        """Draft on up to `longest` tokens of a run, none of the new ones before a time."""
        at_s = max(from_s, run.times_s[-1]) if run.times_s else from_s
        while len(run.times_s) < longest:
            number = len(run.times_s)
            cached = run.first + number - 1 if number else run.cached
            work_s = times.draft_s(1, run.first + number - cached, cached)
            at_s += work_s
            run.times_s.append(at_s)
            run.work_s.append(work_s)

    def _parts(self, device: int) -> tuple[DraftTime, RightTokens]:
        kind = int(self._table.fleet.kind[device])
        return self._table.draft_times[kind], self._sources[kind]
