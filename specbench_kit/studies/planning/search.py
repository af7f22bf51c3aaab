"""The search for the cheapest fleet: candidates are bounded by the law, simulated with one seed,
then judged with all.

What a replica serves does not depend on how many devices there are: it is looked for among fixed
loads, from the law's estimate on. So the rent never falls as devices are added. A candidate is
simulated only as long as it may still cost no more than the best one: its rent is that of whole
replicas for the devices that were asked for.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, floor, inf, log2
from typing import TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.figures import Figures, Interval, SeedFigures
from specbench_kit.serving.metrics import compute_metrics, slo_violations
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_metrics import is_drifting
from specbench_kit.serving.simulation import Simulation, simulate
from specbench_kit.studies.planning.candidates import Candidate, CandidateServer, Market, Placement
from specbench_kit.studies.planning.law import DeviceEstimate, Law, Responses, draw_responses
from specbench_kit.studies.serving.seeds import estimate, over_seeds

LOAD_STEP = 0.02
"""Relative distance between the loads that are tried: the precision of the number of devices that a
replica serves.
"""
MOST = 20000
FIRST_STRIDE = 9
"""Loads between the first two that are tried: about a fifth more devices."""
RESPONSES = 300
TURNS = 2.0
WARM_TURNS = 1.0
"""Least responses that a try counts, and how long it lasts and goes on warming up once all devices
have started, in responses of the slowest class.
"""
HOPELESS = 2.0
"""A load with so many times the late responses that may be, half-way through a try, is not tried to
the end.
"""
JUDGED = 2.0
"""How many times as long as a try each simulation of a verdict lasts."""
WAVE = 4
"""Candidates that are simulated side by side, on however many cores, so that the result is the same
on all.
"""
SLACK = 1.3
"""How many times the devices of a replica's first configuration its other ones may serve, to be
worth simulating.
"""
FEW = 12
"""Configurations of a replica that are all tried; of more, those that are most promising by the
law.
"""
METHODS_TRIED = 2
LIMITS_TRIED = 2
LOADS_JUDGED = 12
"""Most loads that are tried with all seeds, each one step below the one before."""


def _loads() -> tuple[int, ...]:
    loads = [0, 1]
    while loads[-1] < MOST:
        loads.append(min(MOST, max(loads[-1] + 1, round(loads[-1] * (1 + LOAD_STEP)))))
    return tuple(loads)


LOADS = _loads()
"""Numbers of devices that are tried, from none on."""


def replicas_for(devices: int, served: float) -> float:
    """Return how many replicas serve so many devices if each serves `served`; infinity if they
    serve none.
    """
    return ceil(devices / int(served)) if served >= 1 else inf


def rent_of(replicas: float, server: CandidateServer) -> float:
    """Return the dollars per hour of replicas, rounded so that equal rents are equal however they
    are added up.
    """
    return round(replicas * server.price_per_hour, 6)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with the law's estimate of what it serves."""

    candidate: Candidate
    law: DeviceEstimate

    def estimated_rent(self, devices: int) -> float:
        """Return the dollars per hour for so many devices by the estimate."""
        return rent_of(replicas_for(devices, self.law.devices), self.candidate.server)

    def least_rent(self, devices: int) -> float:
        """Return the dollars per hour for so many devices that no simulation undercuts."""
        return rent_of(replicas_for(devices, self.law.bound), self.candidate.server)


@dataclass(frozen=True, slots=True)
class LoadSearch:
    """The search for the most devices that a replica serves, as far as it has come, in places of
    `LOADS`.

    The load at `served` is served and that at `failed` is not; the last place of all stands for a
    load that was not tried. Until there are both, loads are tried from `first` on, each `stride`
    places further and twice as far each time; then by halves. The loads that are tried depend on
    nothing but the replica.
    """

    first: int
    served: int = 0
    failed: int = len(LOADS)
    stride: int = FIRST_STRIDE

    @classmethod
    def from_load(cls, devices: float) -> "LoadSearch":
        """Return a search that begins with the largest load of no more than so many devices."""
        return cls(max(1, bisect_right(LOADS, devices) - 1))

    @property
    def devices(self) -> int:
        """The most devices of which it is known that they are served."""
        return LOADS[self.served]

    @property
    def most(self) -> int:
        """The most devices that may be served."""
        return LOADS[self.failed - 1]

    def is_over(self, resolution: float = 0.0) -> bool:
        """Return whether the most devices are known, or known to this relative precision."""
        if self.failed - self.served == 1:
            return True
        return (
            self.failed < len(LOADS)
            and LOADS[self.failed] - self.devices <= resolution * self.devices
        )

    @property
    def place(self) -> int:
        """The place of the load to try next."""
        if not self.served and self.failed == len(LOADS):
            return self.first
        if self.failed == len(LOADS):
            return min(self.served + self.stride, len(LOADS) - 1)
        if not self.served:
            return max(self.failed - self.stride, 1)
        return (self.served + self.failed) // 2

    def after(self, holds: bool) -> "LoadSearch":
        """Return the search after the next load was tried."""
        place = self.place
        stride = self.stride if place == self.first else 2 * self.stride
        if holds:
            return replace(self, served=place, stride=stride)
        return replace(self, failed=place, stride=stride)


@dataclass(frozen=True, slots=True)
class Need:
    """What a search is for: how many replicas serve so many `devices`, if no more than so many
    `replicas` do.

    They may serve `slack` times as many as the search finds: with other options of the same
    replica.
    """

    devices: int
    replicas: float = inf
    slack: float = 1.0

    def is_met(self, search: LoadSearch) -> bool:
        """Return whether it is known how many replicas it takes, or that it takes too many."""
        if replicas_for(self.devices, self.slack * search.most) > self.replicas:
            return True
        return replicas_for(self.devices, search.most) == replicas_for(self.devices, search.devices)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A candidate, the search for the devices that one replica serves with one seed, and with all
    if it was judged.
    """

    ranked: Ranked
    search: LoadSearch
    judged: int | None = None

    @property
    def server(self) -> CandidateServer:
        """The replica's cards."""
        return self.ranked.candidate.server

    @property
    def devices(self) -> int:
        """The most devices of which it is known that they are served."""
        return self.search.devices if self.judged is None else self.judged

    def rent(self, devices: int) -> float:
        """Return the dollars per hour for so many devices, as far as is known; infinity if none are
        served.
        """
        return rent_of(replicas_for(devices, self.devices), self.server)


@dataclass(frozen=True, slots=True)
class ReplicaFleet:
    """Replicas of a candidate for all devices, each of which serves as many as `devices_served`
    with all seeds.

    `violation_rate` is that of the load that they have, `devices_per_replica`, and `figures` are its metrics, over the
    seeds.
    """

    candidate: Candidate
    replicas: int
    devices_served: int
    devices_per_replica: int
    violation_rate: Interval
    figures: SeedFigures

    @property
    def cards(self) -> int:
        """Number of cards of all replicas."""
        return self.replicas * self.candidate.server.members

    @property
    def price_per_hour(self) -> float:
        """The rent of the fleet for an hour."""
        return rent_of(self.replicas, self.candidate.server)

    @property
    def price_per_million(self) -> float | None:
        """Dollars per million tokens at the load that the replicas have."""
        throughput = self.figures.overall.throughput.mean
        return (
            self.candidate.server.price_per_hour / throughput / 3600 * 1e6 if throughput else None
        )

    def with_load(self, devices: int, per_replica: float) -> "ReplicaFleet | None":
        """Return the fleet for so many devices if a replica serves so many; None if it serves
        none.
        """
        return replace(self, replicas=ceil(devices / per_replica)) if per_replica >= 1 else None


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of a place to draft that are cheapest with all seeds, and all that were
    simulated.

    `cheapest` are of different kinds of replicas and cost the same; the preferred one is first. Of the kinds of
    replicas that were not simulated, all are ruled out by the law's bound. `untried` are configurations of the others
    that were left out, since the law finds others more promising.
    """

    cheapest: Sequence[Simulated]
    simulated: Sequence[Simulated]
    ruled_out: int = 0
    untried: int = 0


def rank(market: Market, placement: Placement) -> list[Ranked]:
    """Return all candidates of a place to draft that may keep the promise by the law, the cheapest
    first.
    """
    responses: dict[str, Responses] = {}
    ranked = []
    for candidate in market.candidates(placement):
        market.source(
            candidate
        )  # which refuses an unknown method or acceptance: no fleet mends that
        try:
            scenario = market.scenario(candidate)
        except SkitError:
            continue  # no batch of this server is in time
        if candidate.method not in responses:
            responses[candidate.method] = draw_responses(scenario)
        law = Law(scenario, responses[candidate.method], market.options.epsilon).estimate()
        ranked.append(Ranked(candidate, law))
    devices = market.options.devices
    # Of candidates with the same rent the one with the most devices in reserve is first.
    return sorted(
        ranked,
        key=lambda entry: (
            entry.estimated_rent(devices),
            -entry.law.devices,
            entry.candidate.label,
        ),
    )


@dataclass(frozen=True, slots=True)
class Trials:
    """How loads of a replica are tried: with one seed, each for as long as its responses need.

    `response_s` are the seconds that the slowest class may take for a response: a try that were not longer would hardly
    see one of that class fall due. A load is simulated until about `RESPONSES` are through. Nothing counts before all
    devices have started and their first responses are through: those come with too few or too many prompts at a time.
    """

    seed: int
    rule: CapacityRule
    response_s: float

    def at(self, scenario: Scenario, devices: int, times: float = 1.0) -> Scenario:
        """Return the scenario with so many devices and for as long as a try lasts, or so many times
        as long.
        """
        ramp_s = scenario.arrivals.ramp_s if isinstance(scenario.arrivals, ClosedLoop) else 0.0
        warmup_s = min(scenario.warmup_s, ramp_s + WARM_TURNS * self.response_s)
        measured_s = times * self.response_s * max(TURNS, RESPONSES / devices)
        duration_s = min(scenario.duration_s, warmup_s + measured_s)
        return replace(
            scenario, devices=devices, duration_s=duration_s, warmup_s=min(warmup_s, duration_s / 2)
        )

    def holds(self, scenario: Scenario, devices: int) -> bool:
        """Return whether a replica keeps the promise to so many devices."""
        tried = self.at(scenario, devices)
        simulation = Simulation(tried, self.seed)
        half_s = (tried.warmup_s + tried.duration_s) / 2
        violated, _ = slo_violations(tried, simulation.run(half_s))
        if len(violated) >= RESPONSES / 2 and float(violated.mean()) > HOPELESS * self.rule.epsilon:
            return False
        violated, _ = slo_violations(tried, simulation.run(tried.duration_s))
        return bool(len(violated)) and float(violated.mean()) <= self.rule.epsilon


def trials_of(market: Market, seed: int, resolution: float = 0.0) -> Trials:
    """Return how loads of a market's replicas are tried with a seed."""
    rule = CapacityRule(epsilon=market.options.epsilon, most=MOST, resolution=resolution)
    return Trials(seed, rule, market.slowest_s)


def narrow(
    scenario: Scenario, trials: Trials, search: LoadSearch, need: Need | None = None
) -> LoadSearch:
    """Return a search for what a replica serves after it went on: until what is needed is known, or
    to its end.
    """
    while not search.is_over(trials.rule.resolution) and not (need and need.is_met(search)):
        search = search.after(trials.holds(scenario, LOADS[search.place]))
    return search


def most_devices(scenario: Scenario, trials: Trials, first: float) -> int:
    """Return the most devices that a replica serves, looked for from `first` on; 0 if it cannot
    serve a single one.
    """
    return narrow(scenario, trials, LoadSearch.from_load(first)).devices


def measure(scenario: Scenario, seed: int) -> tuple[Figures, bool]:
    """Return the metrics of one simulation, and whether it was steady."""
    result = simulate(scenario, seed)
    return compute_metrics(scenario, result), not is_drifting(scenario, result)


def served_at(scenario: Scenario, trials: Trials, first: float) -> tuple[int, float]:
    """Return the most devices that a replica serves, and its tokens per second then."""
    devices = most_devices(scenario, trials, first)
    if not devices:
        return 0, 0.0
    metrics, _ = measure(trials.at(scenario, devices), trials.seed)
    return devices, metrics.overall.throughput


@dataclass(frozen=True, slots=True)
class LoadJudgement:
    """The share of late responses of a replica at one load, over all seeds, and whether it keeps
    the promise there.
    """

    rate: Interval
    figures: SeedFigures
    keeps: bool


@dataclass
class Search:
    """Simulates candidates of a market; `report` counts them."""

    market: Market
    report: ProgressCallback
    workers: Workers
    _judgements: dict[tuple[str, int], LoadJudgement] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """The devices that the fleet is for."""
        return self.market.options.devices

    def trials(self, seed: int, resolution: float = 0.0) -> Trials:
        """Return how loads are tried with a seed."""
        return trials_of(self.market, seed, resolution)

    def best(self, ranked: Sequence[Ranked], placement: Placement, step: str) -> Found:
        """Return the candidates of a place to draft that are cheapest with all seeds, and what is
        known of the others.

        Candidates that may be cheapest are simulated with one seed until it is known which are;
        those are judged, after which others may be cheaper, until the cheapest ones have been
        judged.
        """
        shortlists = self._shortlists(ranked, placement)
        known: dict[str, Simulated] = {}
        report = partial(self.report, step)
        while True:
            self._simulate(shortlists, known, report)
            cheapest = self._cheapest(known.values())
            unjudged = [entry for entry in cheapest if entry.judged is None]
            if not unjudged:
                break
            for entry in unjudged:
                known[entry.ranked.candidate.key] = self.judge(entry)
        report(len(known), len(known))
        simulated = {entry.server.label for entry in known.values()}
        configurations = sum(entry.candidate.server.label in simulated for entry in ranked)
        return Found(
            sorted(cheapest, key=self._preference),
            list(known.values()),
            ruled_out=len(shortlists) - len(simulated),
            untried=configurations * len(self.market.schedulers(placement)) - len(known),
        )

    def _shortlists(
        self, ranked: Sequence[Ranked], placement: Placement
    ) -> Mapping[str, Sequence[Ranked]]:
        """Return the configurations of every kind of replica that are worth simulating, the most
        promising first.

        They do not depend on the number of devices. Of few configurations they are all; of many,
        those that the law finds best with every scheduler, and the nearest limits and best methods
        with the first scheduler.
        """
        schedulers = self.market.schedulers(placement)
        possible = [entry for entry in ranked if entry.law.bound >= 1]
        shortlists: dict[str, Sequence[Ranked]] = {}
        for label, group in _by(possible, lambda entry: entry.candidate.server.label).items():
            entries = sorted(group, key=lambda entry: (-entry.law.devices, entry.candidate.label))
            if len(entries) * len(schedulers) <= FEW:
                shortlists[label] = [
                    _scheduled(entry, name) for entry in entries for name in schedulers
                ]
            else:
                best = [_scheduled(entries[0], name) for name in schedulers]
                shortlists[label] = [*best, *_nearest_limits(entries), *_best_methods(entries)]
        return shortlists

    def _simulate(
        self,
        shortlists: Mapping[str, Sequence[Ranked]],
        known: dict[str, Simulated],
        report: CountCallback,
    ) -> None:
        """Simulate candidates with one seed until none is left that may cost less than the best
        one, or the same.
        """
        while True:
            limit = min((entry.rent(self.devices) for entry in known.values()), default=inf)
            wave = self._worth_simulating(shortlists, known, limit)[:WAVE]
            if not wave:
                return
            trials = self.trials(self.market.options.seed)
            work = [
                (self.market.scenario(entry.ranked.candidate), trials, entry.search, need)
                for entry, need in wave
            ]
            searches = self.workers.map(narrow, work, LoadSearch)
            for (entry, _), search in zip(wave, searches, strict=True):
                known[entry.ranked.candidate.key] = replace(entry, search=search)
                report(len(known), len(known) + WAVE)

    def _worth_simulating(
        self,
        shortlists: Mapping[str, Sequence[Ranked]],
        known: Mapping[str, Simulated],
        limit: float,
    ) -> list[tuple[Simulated, Need]]:
        """Return the candidates of which it is not known whether they cost more than `limit`, and
        what is to be known.

        One configuration of every kind of replica comes first; others may serve so many times as
        many devices. Of a kind with that rent only a lower one is of interest.
        """
        firsts: list[tuple[Simulated, Need]] = []
        others: list[tuple[Simulated, Need]] = []
        for first, *rest in shortlists.values():
            price = first.candidate.server.price_per_hour
            of_kind = [
                known[entry.candidate.key]
                for entry in (first, *rest)
                if entry.candidate.key in known
            ]
            equals = limit < inf and any(entry.rent(self.devices) <= limit for entry in of_kind)
            replicas = inf if limit == inf else _affordable(limit, price) - equals
            entry = known.get(first.candidate.key) or _unknown(first)
            if self._is_open(entry, need := Need(self.devices, replicas, SLACK if rest else 1.0)):
                firsts.append((entry, need))
            elif (
                first.candidate.key in known
                and replicas_for(self.devices, SLACK * max(entry.search.most, 1)) <= replicas
            ):
                need = Need(self.devices, replicas)
                unknown = [known.get(other.candidate.key) or _unknown(other) for other in rest]
                others += [(other, need) for other in unknown if self._is_open(other, need)]
        worth = firsts or others
        return sorted(
            worth,
            key=lambda pair: (
                pair[0].ranked.estimated_rent(self.devices),
                pair[0].ranked.candidate.label,
            ),
        )

    def _is_open(self, entry: Simulated, need: Need) -> bool:
        if entry.judged is not None or entry.search.is_over() or need.is_met(entry.search):
            return False
        return replicas_for(self.devices, entry.ranked.law.bound) <= need.replicas

    def _cheapest(self, known: Iterable[Simulated]) -> list[Simulated]:
        """Return of every kind of replica the best candidate with the least rent of all; none if
        none serves anyone.
        """
        served = [entry for entry in known if entry.devices]
        least = min((entry.rent(self.devices) for entry in served), default=inf)
        cheapest = [entry for entry in served if entry.rent(self.devices) == least]
        by_kind = _by(cheapest, lambda entry: entry.server.label)
        return [
            min(entries, key=lambda entry: (entry.judged is None, *self._preference(entry)))
            for entries in by_kind.values()
        ]

    def _preference(self, entry: Simulated) -> tuple[float, ...]:
        """Return by what candidates of the same rent are sorted: as they keep outputs, and by
        devices in reserve.
        """
        return (
            -entry.server.bits,
            -entry.devices * replicas_for(self.devices, entry.devices),
            -entry.ranked.law.devices,
        )

    def judge(self, simulated: Simulated) -> Simulated:
        """Return a candidate with the most devices that a replica serves with all seeds, none if it
        serves no device.

        That is the highest load, from that of the first seed downwards, at which all of them keep
        the promise.
        """
        options = self.market.options
        scenario = self.market.scenario(simulated.ranked.candidate)
        work = [(scenario, self.trials(options.seed), simulated.search)]
        (search,) = self.workers.map(narrow, work, LoadSearch)
        places = range(search.served, max(0, search.served - LOADS_JUDGED), -1)
        held = (
            LOADS[place]
            for place in places
            if self.judge_load(simulated.ranked.candidate, LOADS[place]).keeps
        )
        return replace(simulated, search=search, judged=next(held, 0))

    def judge_load(self, candidate: Candidate, load: int) -> LoadJudgement:
        """Return whether a replica keeps the promise to so many devices with all seeds, and its
        figures then.
        """
        if (candidate.key, load) not in self._judgements:
            options = self.market.options
            at_load = self.trials(options.seed).at(self.market.scenario(candidate), load, JUDGED)
            work = [(at_load, seed) for seed in range(options.seed, options.seed + options.seeds)]
            outcomes = list(self.workers.map(measure, work, tuple[Figures, bool]))
            rate = estimate(
                [metrics.overall.violation_rate or 0.0 for metrics, _ in outcomes], 0.0, 1.0
            )
            steady = all(steady for _, steady in outcomes)
            keeps = steady and rate.high is not None and rate.high <= options.epsilon
            self._judgements[candidate.key, load] = LoadJudgement(
                rate, over_seeds([metrics for metrics, _ in outcomes]), keeps
            )
        return self._judgements[candidate.key, load]

    def fleet(self, judged: Simulated) -> ReplicaFleet:
        """Return the smallest fleet of a judged candidate, with its figures at the load that its
        replicas have.
        """
        replicas = ceil(self.devices / judged.devices)
        load = ceil(self.devices / replicas)
        judgement = self.judge_load(judged.ranked.candidate, load)
        return ReplicaFleet(
            judged.ranked.candidate,
            replicas,
            judged.devices,
            load,
            judgement.rate,
            judgement.figures,
        )

    def served(self, fleet: ReplicaFleet, report: CountCallback) -> list[int]:
        """Return the most devices that a replica of a fleet serves, seed by seed."""
        options = self.market.options
        scenario = self.market.scenario(fleet.candidate)
        seeds = range(options.seed, options.seed + options.seeds)
        work = [(scenario, self.trials(seed), fleet.devices_served) for seed in seeds]
        by_seed: list[int] = []
        for devices in self.workers.map(most_devices, work, int):
            by_seed.append(devices)
            report(len(by_seed), len(work))
        return by_seed


T = TypeVar("T")


def _by(entries: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _unknown(ranked: Ranked) -> Simulated:
    return Simulated(ranked, LoadSearch.from_load(ranked.law.devices))


def _affordable(limit: float, price: float) -> int:
    """Return how many replicas cost no more than the limit; sums of prices are rounded in their
    last digits.
    """
    return floor(limit / price + 1e-9)


def _scheduled(entry: Ranked, scheduler: str) -> Ranked:
    return replace(entry, candidate=replace(entry.candidate, scheduler=scheduler))


def _nearest_limits(entries: Sequence[Ranked]) -> list[Ranked]:
    """Return the first one of a kind of replica with the nearest other limits of a batch."""
    best = entries[0].candidate
    others = [
        entry
        for entry in entries
        if entry.candidate.method == best.method and entry.candidate != best
    ]
    return sorted(others, key=lambda entry: abs(log2(entry.candidate.max_batch / best.max_batch)))[
        :LIMITS_TRIED
    ]


def _best_methods(entries: Sequence[Ranked]) -> list[Ranked]:
    """Return the best one by the law of each other method, for the best methods."""
    of_others = _by(entries, lambda entry: entry.candidate.method)
    del of_others[entries[0].candidate.method]
    return [of_method[0] for of_method in of_others.values()][:METHODS_TRIED]


def cheapest(fleets: Iterable[ReplicaFleet | None]) -> ReplicaFleet | None:
    """Return the fleet with the least rent; of equals the one with most bits, then whose late
    responses end lowest.
    """

    def preference(fleet: ReplicaFleet) -> tuple[float, ...]:
        late = fleet.violation_rate
        ends_at = late.mean if late.high is None else late.high
        return (
            fleet.price_per_hour,
            -fleet.candidate.server.bits,
            ends_at,
            -fleet.replicas * fleet.devices_served,
        )

    return min(filter(None, fleets), key=preference, default=None)
