"""One run of `skit plan`: from options to a folder with the fleet, its range, its alternatives and
a report.

The chosen replica is written as a deployment, on which `skit capacity` and `skit simulate` check
the plan.
"""

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

import tomli_w
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import StatedFile, described_readings
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.description import corners, describe
from specbench_kit.profilers import cards
from specbench_kit.profilers.loading import save
from specbench_kit.reports.study import finish
from specbench_kit.reports.writing.formatting import seconds, share
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import unused_folder, write_text
from specbench_kit.runs.parts import KeptParts, input_hashes, unfinished_parts
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers, require_cluster
from specbench_kit.studies.planning.assumptions import about_drafts, by_weight, drafting_device
from specbench_kit.studies.planning.candidates import SYSTEM, Candidate, Market, Placement, pausing
from specbench_kit.studies.planning.kind import PLAN, PlanStudy
from specbench_kit.studies.planning.law import Law, draw_responses
from specbench_kit.studies.planning.options import PlanOptions
from specbench_kit.studies.planning.search import (
    JUDGED,
    Found,
    Need,
    Ranked,
    ReplicaFleet,
    Search,
    Simulated,
    cheapest,
    measure,
    most_devices,
    rank,
    rent_of,
    replicas_for,
    served_at,
    trials_of,
)
from specbench_kit.studies.planning.summary import (
    CapacityFactor,
    DraftingDevice,
    FleetSummary,
    MovedAssumption,
    ParetoPoint,
    PlanSummary,
    PricedCard,
    PromiseKept,
    SearchCounts,
    Served,
    SimulatedCandidate,
    Tie,
)
from specbench_kit.studies.serving.capacity import steps_tried
from specbench_kit.studies.serving.seeds import estimate

DEPLOYMENT = "deployment.toml"
VERIFIER = "verifier.toml"
DRAFTER = "drafter.toml"
LINK = "link"
DEVICES = "devices.toml"
EDGE_DRAFTER = "devices-drafter.toml"
"""The deployment of devices that draft for the replica, beside a plan whose servers draft."""
AHEAD = "decoupled"
"""The method whose server never waits, for which a command is given."""


def write_deployment(folder: Path, market: Market, plan: ReplicaFleet) -> dict[str, str]:
    """Write the deployment of a replica and its profiles; return the commands that check the plan
    in that folder.
    """
    candidate = plan.candidate
    server = candidate.server
    content = deepcopy(dict(market.definition.content))
    source = market.deployment(server, candidate.placement).source
    content |= {
        "name": "plan",
        "description": f"The replica of a plan: {candidate.label}.",
        "source": source,
    }
    for part in ("colocated", "sweep"):
        content.pop(part, None)
    save(folder / VERIFIER, market.profile(server))
    verifier = market.deployment(server, candidate.placement).verifier
    content["verifier"] = {
        "device": verifier.device,
        "profile": VERIFIER,
        "price_per_hour": server.price_per_hour,
    }
    if server.stages > 1:
        content["verifier"] |= {
            "power_w": verifier.power_w,
            "stages": server.stages,
            "hand_over": {
                name: value
                for name, value in asdict(verifier.hand_over).items()
                if value is not None
            },
        }
    beside = candidate.placement == "server"
    if beside and not market.is_stated:
        _write_devices(folder, market, content)
    if beside:
        save(folder / DRAFTER, market.draft_profile(server))
        content["drafter"] = {
            "device": server.device.title,
            "profile": DRAFTER,
            "placement": "server",
        }
    elif cards.names_a_file(str(content["drafter"].get("profile", ""))):
        shutil.copyfile(
            market.definition.path.parent / content["drafter"]["profile"], folder / DRAFTER
        )
        content["drafter"] = {**content["drafter"], "profile": DRAFTER}
    if isinstance(link := market.options.link, StatedFile):
        shutil.copyfile(link.path, folder / f"{LINK}{link.path.suffix}")
    write_text(folder / DEPLOYMENT, tomli_w.dumps(content))
    replica = replica_arguments(Path(DEPLOYMENT), market, plan, candidate)
    ahead = ""
    if not market.is_stated:
        drafts_ahead = replace(
            candidate, placement="edge", method=AHEAD, scheduler=market.schedulers("edge")[0]
        )
        devices = Path(DEVICES if beside else DEPLOYMENT)
        ahead = _capacity_command(market, replica_arguments(devices, market, plan, drafts_ahead))
    return {
        "check": shlex.join(
            ["skit", "simulate", "--devices", str(plan.devices_per_replica), *replica]
        ),
        "check_capacity": _capacity_command(market, replica),
        "capacity_ahead": ahead,
    }


def _write_devices(folder: Path, market: Market, content: cards.Table) -> None:
    """Write the deployment in which the plan's replica verifies for the devices that draft."""
    drafter = dict(content["drafter"])
    if cards.names_a_file(str(drafter.get("profile", ""))):
        shutil.copyfile(market.definition.path.parent / drafter["profile"], folder / EDGE_DRAFTER)
        drafter["profile"] = EDGE_DRAFTER
    write_text(folder / DEVICES, tomli_w.dumps({**content, "drafter": drafter}))


def _capacity_command(market: Market, replica: Sequence[str]) -> str:
    return shlex.join(["skit", "capacity", "--epsilon", f"{market.options.epsilon:g}", *replica])


def replica_arguments(
    deployment: Path, market: Market, plan: ReplicaFleet, candidate: Candidate
) -> list[str]:
    """Return the options of `skit simulate` and `skit capacity` for a replica that decodes as a
    candidate says, for as long as the plan's replica was judged.
    """
    options = market.options
    judged = trials_of(market, options.seed).at(
        market.scenario(plan.candidate), plan.devices_served, JUDGED
    )
    arguments = [
        *(
            "--deployment",
            str(deployment),
            "--system",
            SYSTEM[candidate.placement],
            "--method",
            candidate.method,
        ),
        *("--scheduler", candidate.scheduler, "--max-batch", str(candidate.max_batch)),
        *("--acceptance", options.acceptance, "--slo", options.slo),
        *("--kv-tokens", f"{market.kv_tokens(candidate.server, candidate.placement):.0f}"),
        *("--seed", str(options.seed), "--seeds", str(options.seeds)),
        *("--duration", f"{judged.duration_s:g}", "--warm-up", f"{judged.warmup_s:g}"),
    ]
    arrivals = pausing(options.think_s, market.response_s)
    exponential = ",exponential=true" if arrivals.exponential else ""
    arguments += [
        "--arrivals",
        f"closed:think_s={arrivals.think_s:g},ramp_s={arrivals.ramp_s:g}{exponential}",
    ]
    if isinstance(link := options.link, StatedFile):
        copied = structs.replace(link, path=deployment.with_name(f"{LINK}{link.path.suffix}"))
        arguments += ["--link-trace", str(copied)]
    for name, text in (
        ("--prompt-tokens", options.prompt_tokens),
        ("--output-tokens", options.output_tokens),
    ):
        arguments += [name, text] if text is not None else []
    return arguments


PLACEMENTS: tuple[Placement, ...] = ("edge", "server", "none")
SCALES = (0.5, 1.0, 2.0, 3.0)
"""Factors on the promise in the Pareto figure, from the laxest on."""
MOVED = 3
START_S = 5.0
"""Seconds until a command simulates: imports, replays of a trace, and the processes that work side
by side.
"""
WITHOUT_EFFECT = ("out", "jobs", "backend", "resume")
"""Options that change no result."""
COARSE = 0.1
"""Relative precision of loads at other promises."""


class FleetRange(NamedTuple):
    """What a fleet's replica serves by seed and at the ends of its step times, and the rents that
    follow.

    Without a `most_price_per_hour`, the fleet does not keep the promise at the upper end.
    """

    served: Served
    served_at_ends: dict[str, int]
    least_price_per_hour: float
    most_price_per_hour: float | None


@dataclass(frozen=True)
class PlanRun:
    """A run of the planner; `report` shows its steps."""

    options: PlanOptions
    report: ProgressCallback
    argv: tuple[str, ...] = ()

    def run(self) -> PlanStudy:
        """Search, judge, move the assumptions, and write the folder."""
        market = Market(self.options)
        ranked = {placement: rank(market, placement) for placement in PLACEMENTS}
        require_possible(market, ranked)
        parts = self._parts()
        workers = Workers(self.options.jobs, self.options.backend, parts)
        search = Search(market, self.report, workers)
        found = {
            placement: search.best(ranked[placement], placement, f"trying {NAMES[placement]}")
            for placement in PLACEMENTS
        }
        fleets = {
            placement: self._fleet(search, found[placement], placement) for placement in PLACEMENTS
        }
        plan = cheapest(fleets.values())
        if plan is None:
            raise SkitError(impossible(market, ranked))
        described: dict[str, FleetSummary | None] = {
            placement: None if fleet is None else self._described(fleet, search)
            for placement, fleet in fleets.items()
        }
        planned = described[plan.candidate.placement]
        assert planned is not None
        summary = PlanSummary(
            devices=self.options.devices,
            slo=self.options.slo,
            epsilon=self.options.epsilon,
            seeds=self.options.seeds,
            stated_acceptance=self.options.acceptance if market.is_stated else None,
            plan=planned,
            fleets=described,
            ties=[
                self._tie(entry, search)
                for placement in PLACEMENTS
                for entry in _ties(found[placement], fleets[placement], plan)
            ],
            assumptions=self._moved(
                market, search, plan, cheapest([fleets["edge"], fleets["server"]])
            ),
            pareto=self._pareto(market, workers, found, fleets),
            candidates=[
                _candidate(entry, self.options.devices)
                for placement in PLACEMENTS
                for entry in found[placement].simulated
            ],
            searched={
                placement: SearchCounts(
                    len(ranked[placement]) * len(market.schedulers(placement)),
                    len(found[placement].simulated),
                    found[placement].ruled_out,
                    found[placement].untried,
                )
                for placement in PLACEMENTS
            },
            prices={
                server.device.name: PricedCard(
                    **structs.asdict(server.price),
                    power_w=server.device.power_w,
                    power_source=server.device.power_source,
                )
                for server in market.servers()
            },
            capacity_factor=_capacity_factor(market, fleets["server"]),
            drafters=_drafters(market, fleets),
        )
        return self._write(parts, market, plan, summary)

    def _parts(self) -> KeptParts:
        """Return the parts of a new run or of the one that is resumed."""
        options = self.options
        if options.backend == "ray":
            require_cluster()
        defining = {**_config(options), **input_hashes(asdict(options))}
        if options.resume:
            return unfinished_parts(options.out, "plan", defining)
        return KeptParts(
            unused_folder(options.out, "plan", f"{options.devices}-devices", defining), defining
        )

    def _fleet(self, search: Search, found: Found, placement: Placement) -> ReplicaFleet | None:
        report = partial(self.report, f"judging {NAMES[placement]}")
        report(0, 1)
        fleet = search.fleet(found.cheapest[0]) if found.cheapest else None
        report(1, 1)
        return fleet

    def _range(self, fleet: ReplicaFleet, search: Search) -> FleetRange:
        """Return what a fleet's rent may be, over seeds and over what step times may be."""
        devices = self.options.devices
        step = f"range of {NAMES[fleet.candidate.placement]}"
        by_seed = search.served(fleet, partial(self.report, step))
        ends = self._ends(fleet, search, by_seed[0])
        served = estimate([float(number) for number in by_seed], 0.0)
        fleets = [
            fleet.with_load(devices, load)
            for load in (served.low or 0.0, served.high or 0.0, *ends.values())
        ]
        rents = [inf if other is None else other.price_per_hour for other in (fleet, *fleets)]
        return FleetRange(
            Served(*structs.astuple(served), by_seed=by_seed),
            ends,
            min(rents),
            max(rents) if max(rents) < inf else None,
        )

    def _described(self, fleet: ReplicaFleet, search: Search) -> FleetSummary:
        """Return a fleet with its range as `summary.json` holds it."""
        overall = fleet.figures.overall
        energy = fleet.figures.cost
        device = fleet.candidate.server.device
        return FleetSummary(
            **structs.asdict(fleet.candidate.described()),
            **self._range(fleet, search)._asdict(),
            label=fleet.candidate.label,
            title=device.title,
            replicas=fleet.replicas,
            cards=fleet.cards,
            devices_served=fleet.devices_served,
            devices_per_replica=fleet.devices_per_replica,
            violation_rate=fleet.violation_rate,
            price_per_hour=fleet.price_per_hour,
            price_per_million=fleet.price_per_million,
            power_kw=fleet.cards * device.power_w / 1e3,
            server_joules_per_token=energy.server_joules_per_token,
            device_joules_per_token=energy.device_joules_per_token,
            joules_per_device_hour=energy.joules_per_device_hour,
            throughput=overall.throughput.mean,
            classes=fleet.figures.classes,
            overall=overall,
        )

    def _tie(self, entry: Simulated, search: Search) -> Tie:
        """Return another kind of replica whose fleet costs as much as the plan's, with the range of
        its rent.
        """
        candidate = entry.ranked.candidate
        possible = self._range(search.fleet(entry), search)
        return Tie(
            **structs.asdict(candidate.described()),
            title=candidate.server.device.title,
            devices_served=entry.devices,
            least_price_per_hour=possible.least_price_per_hour,
            most_price_per_hour=possible.most_price_per_hour,
        )

    def _ends(self, fleet: ReplicaFleet, search: Search, first: int) -> dict[str, int]:
        """Return what a replica serves at the ends of what its step times may be, with the first
        seed.
        """
        ends: dict[str, int] = {}
        work = []
        for end, deployment in corners(
            search.market.deployment(fleet.candidate.server, fleet.candidate.placement)
        ):
            try:
                scenario = replace(search.market.scenario(fleet.candidate), deployment=deployment)
            except SkitError:
                ends[end] = 0
                continue
            work.append((end, (scenario, search.trials(self.options.seed), first)))
        served = search.workers.map(most_devices, [arguments for _, arguments in work], int)
        return ends | {end: devices for (end, _), devices in zip(work, served, strict=True)}

    def _moved(
        self, market: Market, search: Search, plan: ReplicaFleet, drafting: ReplicaFleet | None
    ) -> list[MovedAssumption]:
        """Return the weightiest assumptions and those about drafts, each moved, with what is then
        needed for it.

        Those about drafts speak against the plan: where it drafts, its drafts become worse, and
        where it does not, those of the cheapest fleet that does, `drafting`, become better.
        """
        report = partial(self.report, "moving assumptions")
        if plan.candidate.placement != "none":
            drafting = plan
        of_drafts = (
            []
            if drafting is None
            else [(drafting, one) for one in about_drafts(market, drafting, plan)]
        )
        moved = [
            *of_drafts,
            *((plan, assumption) for assumption in by_weight(market, plan)[:MOVED]),
        ]
        trials = search.trials(self.options.seed)
        work = [
            (
                assumption.scenario,
                replace(trials, rule=replace(trials.rule, epsilon=assumption.epsilon)),
                fleet.devices_served,
            )
            for fleet, assumption in moved
        ]
        rows: list[MovedAssumption] = []
        for (fleet, assumption), served in zip(
            moved, search.workers.map(most_devices, work, int), strict=True
        ):
            after = fleet.with_load(self.options.devices, served)
            rows.append(
                MovedAssumption(
                    assumption.name,
                    fleet.candidate.placement,
                    assumption.assumed,
                    assumption.moved,
                    served,
                    fleet.cards,
                    fleet.price_per_hour,
                    None if after is None else after.cards,
                    None if after is None else after.price_per_hour,
                    None if after is None else after.price_per_hour / fleet.price_per_hour,
                )
            )
            report(len(rows), len(moved))
        return rows

    def _pareto(
        self,
        market: Market,
        workers: Workers,
        found: dict[Placement, Found],
        fleets: Mapping[Placement, ReplicaFleet | None],
    ) -> list[ParetoPoint]:
        """Return what the devices cost at stricter and at laxer promises, with one seed, and at the
        plan's own.

        At each promise the replicas that the law prefers there, and at stricter ones, are tried:
        what keeps a strict promise keeps a lax one. At the plan's promise stand the judged fleets.
        """
        report = partial(self.report, "other promises")
        markets = [market.promising(_scaled(self.options.classes, scale)) for scale in SCALES]
        tried = [
            (index, candidate)
            for placement in PLACEMENTS
            for index, candidate in _to_try(markets, placement, found[placement])
        ]
        searches = []
        for index, candidate in tried:
            scenario = markets[index].scenario(candidate)
            trials = Search(markets[index], lambda *_: None, workers).trials(
                self.options.seed, COARSE
            )
            law = Law(scenario, draw_responses(scenario), self.options.epsilon).estimate()
            searches.append((scenario, trials, law.devices))
        outcomes: list[tuple[int, Candidate, int, float]] = []
        results = workers.map(served_at, searches, tuple[int, float])
        for (index, candidate), (devices, throughput) in zip(tried, results, strict=True):
            outcomes.append((index, candidate, devices, throughput))
            report(len(outcomes), len(searches))
        points = [
            (
                self._cheapest_point(
                    ParetoPoint(placement, scale, markets[index].slo.mean_speed), index, outcomes
                ),
                fleet,
            )
            for index, scale in enumerate(SCALES)
            for placement, fleet in fleets.items()
        ]
        return [_beside_judged(point, fleet) for point, fleet in points]

    def _cheapest_point(
        self, point: ParetoPoint, index: int, outcomes: Sequence[tuple[int, Candidate, int, float]]
    ) -> ParetoPoint:
        """Return a point with what the cheapest replica costs of those that keep this promise or a
        stricter one.
        """
        served: list[PromiseKept] = []
        for promise, candidate, devices, throughput in outcomes:
            if promise < index or candidate.placement != point.drafting or not devices:
                continue
            rent = rent_of(replicas_for(self.options.devices, devices), candidate.server)
            served.append(PromiseKept(candidate.label, devices, throughput, rent))
        kept = min(served, key=lambda one: (one.price_per_hour, -one.throughput), default=None)
        return structs.replace(point, kept=kept)

    def _write(
        self, parts: KeptParts, market: Market, plan: ReplicaFleet, summary: PlanSummary
    ) -> PlanStudy:
        options = self.options
        checks = write_deployment(parts.folder, market, plan)
        run = {
            "command": "plan",
            "time_kind": "modelled",
            "config": _config(options),
            "deployment": describe(
                market.deployment(plan.candidate.server, plan.candidate.placement)
            ),
            "system": SYSTEM[plan.candidate.placement],
            **checks,
            "check_s": self._check_s(market, plan),
            **described_readings(
                [trace.reading] if (trace := market.network.trace) and trace.reading else []
            ),
            **provenance.collect(self.argv),
        }
        return finish(PLAN, parts.folder, run, summary, parts)

    def _check_s(self, market: Market, plan: ReplicaFleet) -> float:
        """Return about how many seconds a search for the capacity of a replica takes, by one
        simulation that is timed.

        A simulation of a smaller load takes less time, and one of a larger load hardly more: a full
        server verifies no more. Seeds are searched side by side, and a start takes as long as the
        import of what simulates.
        """
        options = self.options
        trials = trials_of(market, options.seed)
        before_s = monotonic_s()
        measure(
            trials.at(market.scenario(plan.candidate), plan.devices_served, JUDGED), options.seed
        )
        simulation_s = monotonic_s() - before_s
        loads = steps_tried(plan.devices_served, replace(CapacityRule(), epsilon=options.epsilon))
        search_s = simulation_s * sum(min(1.0, load / plan.devices_served) for load in loads)
        return START_S + search_s * ceil(options.seeds / provenance.usable_cpus())


def _beside_judged(point: ParetoPoint, fleet: ReplicaFleet | None) -> ParetoPoint:
    """Return the point of one seed as the fleet of all seeds leaves it.

    That fleet stands at the plan's promise, which no laxer promise costs more than, and no stricter
    one less.
    """
    kept = point.kept
    if fleet is None:
        return point if point.scale < 1 else structs.replace(point, kept=None)
    if point.scale > 1:
        rent = max(kept.price_per_hour, fleet.price_per_hour) if kept else 0.0
        return (
            structs.replace(point, kept=structs.replace(kept, price_per_hour=rent))
            if kept
            else point
        )
    if point.scale < 1 and kept and kept.price_per_hour <= fleet.price_per_hour:
        return point
    judged = PromiseKept(
        fleet.candidate.label,
        fleet.devices_per_replica,
        fleet.figures.overall.throughput.mean,
        fleet.price_per_hour,
    )
    return structs.replace(point, kept=judged)


def _scaled(
    classes: Sequence[tuple[float, float]], scale: float
) -> tuple[tuple[float, float], ...]:
    return tuple((speed * scale, share) for speed, share in classes)


def _to_try(
    markets: Sequence[Market], placement: Placement, found: Found
) -> Iterator[tuple[int, Candidate]]:
    """Yield the replicas to try at each promise, by its place: those preferred there or at a
    stricter promise.
    """
    preferred: list[Candidate | None] = []
    for market, scale in zip(markets, SCALES, strict=True):
        best = found.cheapest[0].ranked.candidate if found.cheapest else None
        if scale == 1.0:
            preferred.append(best)
            continue
        first = next((entry for entry in rank(market, placement) if entry.law.devices >= 1), None)
        scheduler = best.scheduler if best else market.schedulers(placement)[0]
        preferred.append(replace(first.candidate, scheduler=scheduler) if first else None)
    for index in range(len(markets)):
        for candidate in {
            entry.key: entry for entry in preferred[index:] if entry is not None
        }.values():
            yield index, candidate


def _ties(found: Found, fleet: ReplicaFleet | None, plan: ReplicaFleet) -> Sequence[Simulated]:
    """Return the other kinds of replicas of a place to draft that cost as much as the plan, besides
    its fleet.
    """
    return (
        found.cheapest[1:]
        if fleet is not None and fleet.price_per_hour == plan.price_per_hour
        else ()
    )


def _capacity_factor(market: Market, fleet: ReplicaFleet | None) -> CapacityFactor | None:
    """Return the capacity factor of a replica that drafts, alone and in the batches of its load."""
    batches = fleet and fleet.figures.server.batch_size
    if not fleet or not batches:
        return None
    scenario = market.scenario(fleet.candidate)
    law = Law(scenario, draw_responses(scenario), market.options.epsilon)
    size = batches.mean.mean
    return CapacityFactor(
        fleet.candidate.method, law.capacity_factor(1.0), law.capacity_factor(size), size
    )


NAMES: dict[Placement, str] = {
    "edge": "devices that draft",
    "server": "a server that drafts",
    "none": "autoregressive decoding",
}


def require_possible(market: Market, ranked: dict[Placement, list[Ranked]]) -> None:
    """Raise SkitError, before anything is simulated, if no server keeps the promise to a single
    device by the law.
    """
    laws = [entry.law for entries in ranked.values() for entry in entries]
    if not any(law.bound >= 1 and law.hopeless_rtt_s > market.rtt_s for law in laws):
        raise SkitError(impossible(market, ranked))


def impossible(market: Market, ranked: dict[Placement, list[Ranked]]) -> str:
    """Return in a line that no fleet keeps the promise, by what, and what would make it
    possible.
    """
    options = market.options
    laws = [entry.law for entries in ranked.values() for entry in entries]
    longest_s = max((law.longest_rtt_s for law in laws), default=inf)
    speed = max(speed for speed, _ in options.classes)
    no_fleet = f"no fleet of {', '.join(options.gpus)} keeps a promise of {speed:g} tokens/s"
    if market.rtt_s >= longest_s:
        return (
            f"{no_fleet} over a link of {seconds(market.rtt_s)}: on servers that take no time, more than "
            f"{share(options.epsilon)} of the responses would be late from {seconds(longest_s)} on, because short ones "
            f"have no time for it; shorten --link, promise at most {speed * longest_s / market.rtt_s:.3g}, or give "
            "longer --output-tokens"
        )
    fastest = 0.0
    label = ""
    lax = market.promising(((1e-3, 1.0),))
    for placement in PLACEMENTS:
        for entry in rank(lax, placement):
            if entry.law.fastest > fastest:
                fastest, label = entry.law.fastest, entry.candidate.label
    return (
        f"{no_fleet}: the fastest replica ({label}) gives {fastest:.3g} tokens/s to a single device; promise at most "
        f"{fastest / 2:.3g}, or allow more --cards, fewer --bits (which change the outputs), "
        "faster --gpus or a smaller --target"
    )


def _drafters(
    market: Market, fleets: Mapping[Placement, ReplicaFleet | None]
) -> dict[str, DraftingDevice]:
    """Return what drafts on the devices, and on the servers of the cheapest fleet whose server
    drafts.
    """
    drafters = {"edge": drafting_device(market.deployment(market.servers()[0], "edge"))}
    if (fleet := fleets["server"]) is not None:
        drafters["server"] = drafting_device(market.deployment(fleet.candidate.server, "server"))
    return drafters


def _candidate(entry: Simulated, devices: int) -> SimulatedCandidate:
    law = entry.ranked.law
    rent = entry.rent(devices)
    # Of a candidate that is too dear it is not known what it serves, but that it takes more
    # replicas than the best.
    is_known = rent < inf and (entry.judged is not None or Need(devices).is_met(entry.search))
    return SimulatedCandidate(
        **structs.asdict(entry.ranked.candidate.described()),
        devices_served=entry.devices if is_known else 0,
        all_seeds=entry.judged is not None,
        devices_by_law=law.devices,
        devices_at_most=law.bound,
        price_per_hour=rent if is_known else None,
    )


def _config(options: PlanOptions) -> OptionValues:
    return {
        name: _shareable(value)
        for name, value in asdict(options).items()
        if name not in WITHOUT_EFFECT
    }


def _shareable(value: object) -> object:
    """Return an option's value as `run.json` holds it, without the folders of this machine."""
    if isinstance(value, tuple):
        return [_shareable(part) for part in value]
    return (
        provenance.without_folders(str(value))
        if isinstance(value, str | Path | StatedFile)
        else value
    )
