"""What a frozen suite measures: the results of policies in its cells, and the scores that follow
from them.

A cell is a pair of models, a deployment and a batch size. Every number is modelled, so that the
same policy has the same results on every machine, to the last of `DIGITS` significant digits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import exp, log
from statistics import fmean
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import Count, Number
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import PairedSpeed, Side
from specbench_kit.metrics.simultaneous import TableLimits
from specbench_kit.metrics.statistics import LEVEL, Interval
from specbench_kit.metrics.typical import limit_of_one
from specbench_kit.metrics.verdicts import SLOWER
from specbench_kit.metrics.vocabulary import BASELINE

VERSION = 1
"""The version of these definitions; a suite names the one that it was made for."""
DIGITS = 9
"""Significant digits of every stored number."""


def rounded(value: float) -> float:
    """Return a number to the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


class SuiteCell(Struct, frozen=True):
    """A cell: its name, what is deployed in words, its round trip, and the task of each of its
    requests.

    `dialogues` are the numbers of the dialogues that the requests are turns of, counted in the order of the requests.
    """

    name: str
    pair: str
    deployment: str
    words: str
    rtt_s: float
    batch_size: int
    tasks: tuple[str, ...]
    dialogues: tuple[int, ...]
    is_recorded: bool
    """True for the recorded pair by which policies are ranked, false for others beside it."""


class CellResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy in one cell: the seconds and rounds of every request, in the order of the cell's
    requests, and sums.

    `wdt` are the drafting seconds of wasted tokens and `wdt_share` their share of all drafting seconds.
    `rounds_sha256` is the hash of what every round drafted, submitted, accepted and committed. A policy that cannot
    run in the cell has none of these, and `missing` says why.
    """

    seconds: tuple[Number, ...] = ()
    rounds: tuple[Count, ...] = ()
    tokens: Count = 0
    drafted: Count = 0
    submitted: Count = 0
    accepted: Count = 0
    wdt: Number = 0.0
    wdt_share: Number | None = None
    rounds_sha256: str = ""
    missing: str = ""

    @property
    def tokens_per_verification(self) -> float:
        """The committed tokens per round, over all requests together."""
        return self.tokens / sum(self.rounds)


class SuiteFleet(Struct, frozen=True):
    """Devices at one server: their pair and deployment, the loads in devices, and the promised
    speeds by class.

    A load is served if at most `late_share` of the responses break their promise. `devices` is the
    load of which more is said than that.
    """

    name: str
    pair: str
    deployment: str
    words: str
    devices: int
    loads: tuple[int, ...]
    classes: tuple[tuple[str, float], ...]
    late_share: float


class FleetResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy in one fleet. One that cannot run there has no figures, and `missing` says why."""

    late: Annotated[
        tuple[tuple[Number, ...], ...],
        Meta(description="share of the responses that break their promise, by seed and load"),
    ] = ()
    late_by_class: Annotated[
        tuple[Number, ...],
        Meta(description="the same by SLO class, mean over seeds at the fleet's number of devices"),
    ] = ()
    goodput: Annotated[
        Number,
        Meta(
            description="tokens per second in responses that keep their promise, mean over seeds at the "
            "fleet's number of devices"
        ),
    ] = 0.0
    missing: Annotated[
        str, Meta(description="why the policy cannot run in the fleet; empty if it can")
    ] = ""


class FleetCapacity(NamedTuple):
    """The devices that a server serves, the mean over seeds with the least and the most of any
    seed.

    It is interpolated between the loads around the largest share of late responses that is allowed,
    and from no late response without devices. `is_bounded` if a seed served even the largest load,
    `is_below` if the mean lies below the smallest, where the number orders policies and means
    nothing else.
    """

    devices: float
    least: float
    most: float
    is_bounded: bool
    is_below: bool


def fleet_capacity(fleet: SuiteFleet, result: FleetResult) -> FleetCapacity:
    """Return how many devices a policy serves in a fleet."""
    found = [_crossing(fleet.loads, late, fleet.late_share) for late in result.late]
    served = [load for load, _ in found]
    mean = fmean(served)
    is_bounded = any(bounded for _, bounded in found)
    return FleetCapacity(mean, min(served), max(served), is_bounded, mean < fleet.loads[0])


def _crossing(loads: Sequence[int], late: Sequence[float], limit: float) -> tuple[float, bool]:
    """Return the load at which the share of late responses first passes the limit; the last one if
    it never does.
    """
    points = [(0, 0.0), *zip(loads, late, strict=True)]
    for (load, share), (next_load, next_share) in pairwise(points):
        if next_share > limit:
            return load + (next_load - load) * (limit - share) / (next_share - share), False
    return float(loads[-1]), True


class PredictorUsed(Struct, frozen=True, forbid_unknown_fields=True):
    """The predictor that a policy used: its family, when it was trained, and the hash of its header
    and weights.
    """

    family: str
    created: str
    sha256: str


class PolicyResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy: what it is, and its results by the names of cells and of fleets.

    `source_sha256` is the hash of the Python files that define it, `package` and `version` the distribution that they
    come from. `is_bound` marks a policy that cannot be deployed. `reported` is what its authors claim.
    """

    spec: str
    options: OptionValues
    options_sha256: str
    summary: str
    source: str
    reported: str
    group: str
    is_bound: bool
    package: str
    version: str
    source_sha256: str
    predictor: PredictorUsed | None = None
    lowered: str = ""
    """The draft limit that was lowered to what the trace holds, as in `max_draft=12`."""
    cells: dict[str, CellResult] = field(default_factory=dict)
    fleets: dict[str, FleetResult] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        """Why it has no result, by cell and fleet."""
        cells = {name: cell.missing for name, cell in self.cells.items() if cell.missing}
        return cells | {name: fleet.missing for name, fleet in self.fleets.items() if fleet.missing}


class SuiteResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of results: those of one policy on one suite.

    `machine` is for people alone: no number depends on it. `seal` is the hash of all the rest.
    """

    schema: int
    suite: str
    suite_sha256: str
    metrics: int
    quick: bool
    kit: str
    machine: dict[str, str]
    policy: PolicyResult
    seal: str = ""


class MeasuredServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of two running servers: its name, kind, model and version, and what was measured, one
    request at a time.
    """

    name: str
    kind: str
    model: str | None = None
    version: str | None = None
    tokens_per_s: Number | None = None
    acceptance_length: Number | None = None


class MeasuredResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two running servers measured on a suite's prompts: the second, which speculates, against the
    first.

    `speedup` is the ratio of the end-to-end times in a typical turn, with its interval and verdict, and `outputs` says
    whether the answers agree. No number comes out again to the digit, so that the result stands in no rank. `seal` is
    the hash of all the rest.
    """

    schema: int
    suite: str
    suite_sha256: str
    quick: bool
    kit: str
    hardware: str
    servers: tuple[MeasuredServer, MeasuredServer]
    requests: Count
    failed: Count
    speedup: Number | None
    interval: tuple[Number, Number] | None
    verdict: str
    outputs: str
    seal: str = ""


@dataclass(frozen=True)
class CellScore:
    """A policy's scores in one cell.

    `speed` is its speed relative to autoregressive decoding, paired by prompt or by batch. By `limits` its interval
    holds together with those of all policies of the cell. `regret` is the share of its time that the oracle of the cell
    would have saved: 0 where it is as fast, or faster, as trees and overlap can be.
    """

    result: CellResult
    speed: PairedSpeed
    limits: TableLimits
    regret: float | None

    @property
    def speedup(self) -> float:
        return self.speed.ratio.value

    @property
    def interval(self) -> Interval | None:
        return self.speed.interval(self.limits)


@dataclass(frozen=True)
class Standing:
    """A policy's place in a cell among those that can be deployed, autoregressive decoding
    included; 1 is the first.

    `is_first` holds for all that are not shown to be slower than the first on a typical prompt; verdicts of one cell
    hold together.
    """

    spec: str
    rank: int
    is_first: bool


class Scoreboard:
    """The scores of policies in the cells of a suite; of two results of one spec the later
    counts.
    """

    def __init__(
        self,
        cells: Sequence[SuiteCell],
        bounds: Sequence[str],
        policies: Iterable[PolicyResult],
        fleets: Sequence[SuiteFleet] = (),
    ) -> None:
        self.cells = {cell.name: cell for cell in cells}
        self.fleets = {fleet.name: fleet for fleet in fleets}
        self.policies = {policy.spec: policy for policy in policies}
        # In a batch, an oracle may be slower than not to draft at all: it plans every request as if
        # it were alone.
        self._bounds = [spec for spec in (*bounds, BASELINE) if spec in self.policies]
        self._scores: dict[tuple[str, str], CellScore | None] = {}
        self._limits_by_cell: dict[str, TableLimits] = {}

    def score(self, spec: str, cell: str) -> CellScore | None:
        """Return the scores of a policy in a cell; None if it, or the baseline, has no result
        there.
        """
        if (spec, cell) not in self._scores:
            self._scores[spec, cell] = self._score(spec, cell)
        return self._scores[spec, cell]

    def scores(self, spec: str) -> dict[str, CellScore]:
        """Return the scores of a policy by cell, of those cells where it has any."""
        found = {cell: self.score(spec, cell) for cell in self.cells}
        return {cell: score for cell, score in found.items() if score}

    def fleet(self, spec: str, fleet: str) -> FleetResult | None:
        """Return the result of a policy in a fleet; None if it has none there."""
        policy = self.policies.get(spec)
        result = policy.fleets.get(fleet) if policy else None
        return result if result and result.late else None

    def capacity(self, spec: str, fleet: str) -> FleetCapacity | None:
        """Return how many devices a policy serves in a fleet; None if it has no result there."""
        result = self.fleet(spec, fleet)
        return fleet_capacity(self.fleets[fleet], result) if result else None

    def oracle(self, cell: str) -> CellScore | None:
        """Return the fastest bound of a cell, which is autoregressive decoding where no oracle is
        faster.
        """
        scores = [score for spec in self._bounds if (score := self.score(spec, cell))]
        return max(scores, key=lambda score: score.speedup, default=None)

    def rank(self, spec: str, cell: str) -> tuple[int, int] | None:
        """Return a policy's place by its speedup, and how many have one; None without any or
        without a rival.
        """
        speeds = self._speeds(cell)
        # A quick run stands alone, where only autoregressive decoding would be behind or before it.
        if spec not in speeds or not speeds.keys() - {spec, BASELINE}:
            return None
        return 1 + sum(speed > speeds[spec] for speed in speeds.values()), len(speeds)

    def standings(self, cell: str) -> list[Standing]:
        """Return the places of a cell, the first at the top.

        The first is found in the same times as the others, so that every pair of policies counts as
        a comparison.
        """
        speeds = self._speeds(cell)
        ranked = sorted(speeds, key=lambda spec: -speeds[spec])
        units = self._units(cell)
        pairs = max(1, len(ranked) * (len(ranked) - 1) // 2)
        limits = TableLimits.of(limit_of_one(1 + max(units.values()), 1 - (1 - LEVEL) / pairs))
        sides = {spec: self._side(spec, cell) for spec in ranked}
        standings = []
        for place, spec in enumerate(ranked):
            speed = paired.relative_speed(sides[spec], sides[ranked[0]], units)
            is_slower = place > 0 and speed is not None and speed.verdict(limits) == SLOWER
            standings.append(Standing(spec, 1 + place, not is_slower))
        return standings

    def fastest(self, cell: str, task: str = "") -> tuple[str, float] | None:
        """Return the deployable policy with the highest speedup in a cell, or on one of its tasks,
        and that speedup.
        """
        baseline = self._result(BASELINE, cell)
        if baseline is None:
            return None
        chosen = [n for n, name in enumerate(self.cells[cell].tasks) if task in ("", name)]

        def seconds(result: CellResult) -> float:
            return sum(result.seconds[n] for n in chosen)

        speedups = {
            spec: seconds(baseline) / seconds(result)
            for spec in self.deployable
            if (result := self._result(spec, cell)) and len(result.seconds) == len(baseline.seconds)
        }
        return max(speedups.items(), key=lambda item: item[1], default=None)

    def mean_speedup(self, spec: str, cells: Sequence[str]) -> float | None:
        """Return the geometric mean of the speedups in these cells; None unless the policy ran in
        all of them.
        """
        scores = [self.score(spec, cell) for cell in cells]
        speedups = [score.speedup for score in scores if score]
        return (
            exp(sum(map(log, speedups)) / len(speedups))
            if speedups and len(speedups) == len(scores)
            else None
        )

    @cached_property
    def deployable(self) -> list[str]:
        """The specs of all policies that can be deployed, autoregressive decoding among them."""
        return [spec for spec, policy in self.policies.items() if not policy.is_bound]

    def _speeds(self, cell: str) -> dict[str, float]:
        scores = {spec: self.score(spec, cell) for spec in self.deployable}
        return {spec: score.speedup for spec, score in scores.items() if score}

    def _score(self, spec: str, cell: str) -> CellScore | None:
        result = self._result(spec, cell)
        if result is None or self._result(BASELINE, cell) is None:
            return None
        speed = paired.speedup(self._side(spec, cell), self._units(cell))
        if speed is None:
            return None
        bounds = [bound for name in self._bounds if (bound := self._result(name, cell))]
        least_s = min((sum(bound.seconds) for bound in bounds), default=None)
        regret = None if least_s is None else max(0.0, 1 - least_s / sum(result.seconds))
        return CellScore(result, speed, self._limits(cell), regret)

    def _limits(self, cell: str) -> TableLimits:
        """Return what the intervals of a cell's speedups go by."""
        if cell not in self._limits_by_cell:
            specs = [
                spec for spec in self.policies if spec != BASELINE and self._result(spec, cell)
            ] or [BASELINE]
            sides = [self._side(spec, cell) for spec in specs]
            self._limits_by_cell[cell] = paired.limits_of_speedups(sides, self._units(cell))
        return self._limits_by_cell[cell]

    def _result(self, spec: str, cell: str) -> CellResult | None:
        policy = self.policies.get(spec)
        result = policy.cells.get(cell) if policy else None
        return result if result and result.seconds else None

    def _side(self, spec: str, cell: str) -> Side:
        own, baseline = (self._result(name, cell) or CellResult() for name in (spec, BASELINE))
        return Side(dict(_by_request(own)), dict(_by_request(baseline)))

    def _units(self, cell: str) -> dict[str, int]:
        """Return the unit of each request: the turns of a dialogue share one, and what is in a
        batch together.
        """
        size = self.cells[cell].batch_size
        return {
            str(number): dialogue // size
            for number, dialogue in enumerate(self.cells[cell].dialogues)
        }


def _by_request(result: CellResult) -> Iterator[tuple[paired.Key, float]]:
    return (((str(number), 0), seconds) for number, seconds in enumerate(result.seconds))


@dataclass(frozen=True)
class SuiteOutline:
    """What a report says of a suite: its name, its hash, its content and its pairs in words, and
    what it lacks.
    """

    name: str
    sha256: str
    summary: str
    pairs: Mapping[str, str]
    left_out: Sequence[str]
