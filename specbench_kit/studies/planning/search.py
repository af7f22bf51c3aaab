"""The search for the cheapest fleet: candidates in the order of the law's estimate, then simulated.

What a replica serves is searched for with one seed, from the law's estimate on; the best of each place to draft is
judged with all seeds, at the load that each replica of the fleet would have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, inf, log2

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.metrics.serving_rows import Figures, Interval, SeedFigures
from specbench_kit.serving.metrics import compute_metrics, slo_violations
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_metrics import is_drifting
from specbench_kit.serving.simulation import Simulation, simulate
from specbench_kit.studies.planning.candidates import Candidate, Market, Placement
from specbench_kit.studies.planning.law import DeviceEstimate, Law, Responses, draw_responses
from specbench_kit.studies.serving.seeds import estimate, over_seeds

RESOLUTION = 0.04
"""Relative precision of the number of devices that a replica serves."""
STEP = 1.2
"""Factor between loads until one is served and the next is not."""
MOST = 20000
RESPONSES = 300
TURNS = 2.0
WARM_TURNS = 0.75
"""Least responses that a try counts, and how long it lasts and warms up, in responses of the slowest class."""
HOPELESS = 2.0
"""A load with so many times the late responses that may be, half-way through a try, is not tried to the end."""
JUDGED = 2.0
"""How many times as long as a try each simulation of a verdict lasts."""
WAVE = 4
"""Candidates that are simulated side by side, on however many cores, so that the result is the same on all."""
CLOSE = 1.1
FINALISTS = 2
"""How dear a replica may be by one seed to be judged with all, and how many are for each place to draft."""
TRIES = 12
"""Most kinds of replicas that are simulated for each place to draft."""
SLACK = 1.3
"""A replica that the law makes so many times as dear as it makes the best of the simulated ones is not simulated."""
METHODS_TRIED = 2
MORE_REPLICAS = 12
REPLICAS_STEP = 0.02
"""How often, and by what share, a fleet is enlarged until all seeds keep the promise."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with the law's estimate of what it serves."""

    candidate: Candidate
    law: DeviceEstimate

    @property
    def estimated_price(self) -> float:
        """Dollars per hour and device by the estimate."""
        return self.candidate.server.price_per_hour / self.law.devices if self.law.devices >= 1 else inf

    @property
    def least_price(self) -> float:
        """Dollars per hour and device that no simulation undercuts."""
        return self.candidate.server.price_per_hour / self.law.bound if self.law.bound >= 1 else inf


@dataclass(frozen=True, slots=True)
class Simulated:
    """A candidate and the most devices that one replica serves with one seed."""

    ranked: Ranked
    devices: int

    @property
    def price(self) -> float:
        """Dollars per hour and device."""
        return self.ranked.candidate.server.price_per_hour / self.devices if self.devices else inf


@dataclass(frozen=True, slots=True)
class ReplicaFleet:
    """Replicas of a candidate for all devices, judged with all seeds at the load of a full replica.

    `violation_rate` is that of the load `devices_per_replica`, and `figures` are its metrics, over the seeds.
    """

    candidate: Candidate
    replicas: int
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
        return self.replicas * self.candidate.server.price_per_hour

    @property
    def price_per_million(self) -> float | None:
        """Dollars per million tokens of a full replica."""
        throughput = self.figures.overall.throughput.mean
        return self.candidate.server.price_per_hour / throughput / 3600 * 1e6 if throughput else None

    def with_load(self, devices: int, per_replica: float) -> "ReplicaFleet | None":
        """Return the fleet for so many devices if a replica serves so many; None if it serves none."""
        return replace(self, replicas=ceil(devices / per_replica)) if per_replica >= 1 else None


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate of a place to draft with one seed, None if none keeps the promise, and all that were tried.

    `finalists` are the best of each kind of replica whose prices are close to the best: seeds decide between them. Of
    the kinds of replicas that were not, so many are `ruled_out` by the law's bound, and so many are `unlikely`: too
    dear by its estimate.
    """

    best: Simulated | None
    simulated: Sequence[Simulated]
    finalists: Sequence[Simulated] = ()
    ruled_out: int = 0
    unlikely: int = 0


def rank(market: Market, placement: Placement) -> list[Ranked]:
    """Return all candidates of a place to draft that may keep the promise by the law, the cheapest first."""
    responses: dict[str, Responses] = {}
    ranked = []
    for candidate in market.candidates(placement):
        market.source(candidate)  # which refuses an unknown method or acceptance: no fleet mends that
        try:
            scenario = market.scenario(candidate)
        except SkitError:
            continue  # no batch of this server is in time
        if candidate.method not in responses:
            responses[candidate.method] = draw_responses(scenario)
        law = Law(scenario, responses[candidate.method], market.options.epsilon).estimate()
        ranked.append(Ranked(candidate, law))
    return sorted(ranked, key=lambda entry: (entry.estimated_price, entry.least_price, entry.candidate.label))


@dataclass(frozen=True, slots=True)
class Trials:
    """How loads of a replica are tried: with one seed, each for as long as its responses need.

    `response_s` are the seconds that the slowest class may take for a response: a try that were not longer would hardly
    see one of that class fall due. A load is simulated until about `RESPONSES` are through.
    """

    seed: int
    rule: CapacityRule
    response_s: float

    def at(self, scenario: Scenario, devices: int, times: float = 1.0) -> Scenario:
        """Return the scenario with so many devices and for as long as a try lasts, or so many times as long."""
        warmup_s = min(scenario.warmup_s, WARM_TURNS * self.response_s)
        measured_s = times * self.response_s * max(TURNS, RESPONSES / devices)
        duration_s = min(scenario.duration_s, warmup_s + measured_s)
        return replace(scenario, devices=devices, duration_s=duration_s, warmup_s=min(warmup_s, duration_s / 2))

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


def most_devices(scenario: Scenario, trials: Trials, first: int, least: int = 0) -> int:
    """Return the most devices that a replica serves, looked for from `first` on; 0 if it cannot serve a single one.

    If it has to serve `least` devices, that load is tried first, and 0 is returned if it does not.
    """
    tried: dict[int, bool] = {}

    def holds(devices: int) -> bool:
        if devices not in tried:
            tried[devices] = trials.holds(scenario, devices)
        return tried[devices]

    if least and not holds(least):
        return 0
    low, high = least, 0
    step = max(least + 1, first)
    while not low or not high:
        if step >= MOST:
            return low
        if holds(step):
            low, step = step, ceil(step * STEP)
        else:
            high, step = step, floor(step / STEP)
        if not step:
            return 0
    while high - low > max(1, trials.rule.resolution * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def measure(scenario: Scenario, seed: int) -> tuple[Figures, bool]:
    """Return the metrics of one simulation, and whether it was steady."""
    result = simulate(scenario, seed)
    return compute_metrics(scenario, result), not is_drifting(scenario, result)


def served_at(scenario: Scenario, trials: Trials, first: int) -> tuple[int, float]:
    """Return the most devices that a replica serves, and its tokens per second then."""
    devices = most_devices(scenario, trials, first)
    if not devices:
        return 0, 0.0
    metrics, _ = measure(trials.at(scenario, devices), trials.seed)
    return devices, metrics.overall.throughput


@dataclass
class Search:
    """Simulates candidates of a market; `report` counts them."""

    market: Market
    report: ProgressCallback
    workers: Workers

    def trials(self, seed: int, resolution: float = RESOLUTION) -> Trials:
        """Return how loads are tried with a seed."""
        options = self.market.options
        rule = CapacityRule(epsilon=options.epsilon, most=MOST, resolution=resolution)
        return Trials(seed, rule, self.market.slowest_s)

    def simulate(self, entries: Sequence[Ranked], best: float, report: CountCallback, done: int) -> list[Simulated]:
        """Return what each candidate serves with the first seed; nothing if it costs more than `best` per device."""
        options = self.market.options
        trials = self.trials(options.seed)
        work = []
        for entry in entries:
            least = 0 if best == inf else floor(entry.candidate.server.price_per_hour / best) + 1
            first = max(round(entry.law.devices), ceil(STEP * least), 1)
            work.append((self.market.scenario(entry.candidate), trials, first, least))
        simulated = []
        for entry, devices in zip(entries, self.workers.map(most_devices, work, int), strict=True):
            simulated.append(Simulated(entry, devices))
            report(done + len(simulated), done + len(entries))
        return simulated

    def best(self, ranked: Sequence[Ranked], placement: Placement, step: str) -> "Found":
        """Return the best candidate of a place to draft with one seed, and what is known of the others.

        One candidate of every kind of replica is simulated first, in the order of the estimate, at the load with which
        it would be cheaper than the best so far; then schedulers, methods and limits of the best one are varied.
        """
        report = partial(self.report, step)
        firsts = list({entry.candidate.server.label: entry for entry in reversed(ranked)}.values())
        firsts.sort(key=lambda entry: (entry.estimated_price, entry.candidate.label))
        simulated: list[Simulated] = []
        left = [entry for entry in firsts if entry.law.devices >= 1]
        while left and len(simulated) < TRIES:
            price = min((entry.price for entry in simulated), default=inf)
            by_law = min(simulated, key=lambda entry: entry.price).ranked.estimated_price if price < inf else inf
            left = [entry for entry in left if entry.least_price < price and entry.estimated_price < SLACK * by_law]
            wave, left = left[:WAVE], left[WAVE:]
            simulated += self.simulate(wave, price, report, len(simulated))
        for others in (self._other_schedulers, self._other_options):
            served = [entry for entry in simulated if entry.devices]
            if served:
                best = min(served, key=lambda entry: entry.price)
                simulated += self.simulate(others(best, ranked), best.price, report, len(simulated))
        served = [entry for entry in simulated if entry.devices]
        best_price = min((entry.price for entry in served), default=inf)
        known = {entry.ranked.candidate.server.label for entry in simulated}
        skipped = [entry for entry in firsts if entry.candidate.server.label not in known]
        served.sort(key=lambda entry: entry.price, reverse=True)
        by_server = {entry.ranked.candidate.server.label: entry for entry in served}
        close = [entry for entry in reversed(by_server.values()) if entry.price <= CLOSE * best_price]
        return Found(
            served[-1] if served else None,
            simulated,
            close[:FINALISTS],
            ruled_out=sum(entry.least_price >= best_price for entry in skipped),
            unlikely=sum(entry.least_price < best_price for entry in skipped),
        )

    def _other_schedulers(self, best: Simulated, ranked: Sequence[Ranked]) -> list[Ranked]:
        candidate = best.ranked.candidate
        others = [name for name in self.market.schedulers(candidate.placement) if name != candidate.scheduler]
        return [Ranked(replace(candidate, scheduler=scheduler), best.ranked.law) for scheduler in others]

    def _other_options(self, best: Simulated, ranked: Sequence[Ranked]) -> list[Ranked]:
        """Return other methods and limits on the best replica, with its scheduler, in the order of the estimate."""
        candidate = best.ranked.candidate
        others = [
            Ranked(replace(entry.candidate, scheduler=candidate.scheduler), entry.law)
            for entry in ranked
            if entry.candidate.server.label == candidate.server.label
            and entry.law.devices >= 1
            and (entry.candidate.method, entry.candidate.max_batch) != (candidate.method, candidate.max_batch)
        ]
        methods = {entry.candidate.method: entry for entry in reversed(others)}
        methods.pop(candidate.method, None)
        limits = [entry for entry in others if entry.candidate.method == candidate.method]
        limits.sort(key=lambda entry: abs(log2(entry.candidate.max_batch / candidate.max_batch)))
        alternatives = sorted(methods.values(), key=lambda entry: entry.estimated_price)
        return [*limits[:2], *alternatives[:METHODS_TRIED]]

    def judge(self, simulated: Simulated) -> ReplicaFleet | None:
        """Return the smallest fleet of a candidate with which all seeds keep the promise; None if there is none."""
        options = self.market.options
        candidate = simulated.ranked.candidate
        scenario = self.market.scenario(candidate)
        seeds = range(options.seed, options.seed + options.seeds)
        replicas = ceil(options.devices / simulated.devices)
        for _ in range(MORE_REPLICAS):
            load = ceil(options.devices / replicas)
            at_load = self.trials(options.seed).at(scenario, load, JUDGED)
            outcomes = list(self.workers.map(measure, [(at_load, seed) for seed in seeds], tuple[Figures, bool]))
            rate = estimate([metrics.overall.violation_rate or 0.0 for metrics, _ in outcomes], 0.0, 1.0)
            if rate.high is not None and rate.high <= options.epsilon and all(steady for _, steady in outcomes):
                figures = over_seeds([metrics for metrics, _ in outcomes])
                return ReplicaFleet(candidate, replicas, load, rate, figures)
            replicas += max(1, ceil(REPLICAS_STEP * replicas))
        return None

    def served(self, fleet: ReplicaFleet, report: CountCallback) -> list[int]:
        """Return the most devices that a replica of a fleet serves, seed by seed."""
        options = self.market.options
        scenario = self.market.scenario(fleet.candidate)
        seeds = range(options.seed, options.seed + options.seeds)
        work = [(scenario, self.trials(seed), fleet.devices_per_replica) for seed in seeds]
        by_seed: list[int] = []
        for devices in self.workers.map(most_devices, work, int):
            by_seed.append(devices)
            report(len(by_seed), len(work))
        return by_seed


def cheapest(fleets: Iterable[ReplicaFleet | None]) -> ReplicaFleet | None:
    """Return the fleet with the least rent; None if there is none."""
    return min(filter(None, fleets), key=lambda fleet: fleet.price_per_hour, default=None)
