"""Run policies in a suite: recorded pairs are replayed, synthetic ones decode, and fleets of
devices are simulated.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from msgspec import json

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.core.plain_text import summary_of
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.user_data import without_user_files
from specbench_kit.core.version import __version__
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.deployments.placing import drafts_on_edge
from specbench_kit.deployments.synthetic_prompts import NO_ANSWERS, SyntheticPrompts
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.selection import ALL, expand_specs
from specbench_kit.methods.spec import parse_method, resolved_options, source_hash
from specbench_kit.metrics.latency import wasted_time
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import content_hash
from specbench_kit.serving.acceptance_spec import DEPENDS_ON_LOAD, recorded_source
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.figures import Figures
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import DraftingPlace, ServingSystem
from specbench_kit.studies.suite.definition import FleetTable, Suite, load
from specbench_kit.studies.suite.files import SCHEMA
from specbench_kit.studies.suite.scores import (
    VERSION,
    CellResult,
    FleetResult,
    PolicyResult,
    PredictorUsed,
    SuiteResult,
    rounded,
)
from specbench_kit.traces.draft_limits import fit_spec, lowered_limit
from specbench_kit.traces.replay import prepare_for_replay, replay


def fleet_result(
    fleet: FleetTable,
    method: Method,
    deployment: Deployment,
    records: Sequence[RequestRecord],
    quick: bool,
    log: WorkLog | None = None,
) -> FleetResult:
    """Simulate every load of a fleet whose devices make the rounds of a method's records.

    Where a replay left its `log`, they take the work of drafting that they took there. A quick run
    takes the first seed alone. Raise SkitError for a method whose rounds a simulation cannot time.
    """
    require(method.ahead is None, DEPENDS_ON_LOAD)
    scenarios = {
        load: _scenario(fleet, load, method, deployment, records, log) for load in fleet.loads
    }
    late: list[tuple[float, ...]] = []
    at_devices: list[Figures] = []
    for seed in range(1 if quick else fleet.seeds):
        shares = []
        for devices, scenario in scenarios.items():
            metrics = compute_metrics(scenario, simulate(scenario, seed))
            shares.append(rounded(metrics.overall.violation_rate or 0.0))
            if devices == fleet.devices:
                at_devices.append(metrics)
        late.append(tuple(shares))
    late_by_class = []
    for groups in zip(*(metrics.classes.values() for metrics in at_devices), strict=True):
        rates = [group.violation_rate or 0.0 for group in groups]
        late_by_class.append(rounded(fmean(rates)))
    return FleetResult(
        late=tuple(late),
        late_by_class=tuple(late_by_class),
        goodput=rounded(fmean(metrics.overall.goodput for metrics in at_devices)),
    )


def _scenario(
    fleet: FleetTable,
    devices: int,
    method: Method,
    deployment: Deployment,
    records: Sequence[RequestRecord],
    log: WorkLog | None,
) -> Scenario:
    place: DraftingPlace = "none"
    if method.uses_drafter:
        place = "edge" if drafts_on_edge(method, deployment) else "server"
    system = ServingSystem(
        summary=fleet.words, method=method.display_name, scheduler=fleet.scheduler, drafting=place
    )
    return Scenario(
        deployment,
        system,
        recorded_source(records, method, deployment, log),
        devices,
        slo=parse_slo(fleet.slo),
        # Thinking always takes the same time: a drawn one goes through a logarithm, whose last bit
        # depends on the processor.
        arrivals=ClosedLoop(think_s=fleet.think_s, ramp_s=fleet.ramp_s),
        memory=KvCapacity(fleet.kv_tokens),
        duration_s=fleet.duration_s,
        warmup_s=fleet.warmup_s,
        require_attainable_slo=False,
    )


KIT = "specbench-kit"
NOTHING_DONE: Mapping[str, SuiteResult] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CellRun:
    """What one policy left in one cell."""

    result: CellResult
    predictor: PredictorUsed | None = None


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What one policy left in one fleet."""

    result: FleetResult
    predictor: PredictorUsed | None = None


class SuiteRecords(NamedTuple):
    """A prepared method, the records of the requests that it decoded, and the work of a replay's
    drafting.
    """

    method: Method
    records: list[RequestRecord]
    log: WorkLog | None = None


def run_suite(
    suite: Suite,
    named: Sequence[str],
    jobs: int,
    report: CountCallback,
    done: Mapping[str, SuiteResult] = NOTHING_DONE,
) -> Iterator[SuiteResult]:
    """Yield the result of each of the named policies in every cell of a suite, from `jobs`
    processes.

    `all` stands for the policies of the kit and those that the suite itself names. Those that are `done`, by spec, do
    not run again. Raise SkitError if a named policy runs in no cell.
    """
    specs = list(expand_specs([*named, *suite.table.policies] if ALL in named else named))
    yield from (done[spec] for spec in specs if spec in done)
    specs = [spec for spec in specs if spec not in done]
    parts = [*suite.cells, *suite.fleets]
    work = [(suite.table.name, suite.quick, spec, part) for spec in specs for part in parts]
    report(0, len(work))
    runs = Workers(jobs).map(_run_part, work)
    machine = {"platform": platform.platform(), **provenance.versions()}
    for number, spec in enumerate(specs):
        by_part = {}
        for part in parts:
            by_part[part] = next(runs)
            report(number * len(parts) + len(by_part), len(work))
        reasons = [run.result.missing for run in by_part.values()]
        if spec in named:
            require(
                not all(reasons),
                f"{spec} runs in no cell of suite {suite.table.name}: {reasons[0]}",
            )
        yield SuiteResult(
            schema=SCHEMA,
            suite=suite.table.name,
            suite_sha256=suite.sha256,
            metrics=VERSION,
            quick=suite.quick,
            kit=__version__,
            machine=machine,
            policy=_policy(suite, spec, by_part),
        )


def _run_part(name: str, quick: bool, spec: str, part: str) -> CellRun | FleetRun:
    """Return the result of a policy in one cell or one fleet."""
    return (run_fleet if part in load(name, quick).fleets else run_cell)(name, quick, spec, part)


@gc_paused()
def run_cell(name: str, quick: bool, spec: str, cell: str) -> CellRun:
    """Return the result of a policy in one cell, or the reason why there is none.

    The user's own predictors, tables and profiles are hidden, so that they change nothing.
    """
    with without_user_files():
        suite = load(name, quick)
        place = suite.cells[cell]
        deployment = suite.deployment(place.deployment)
        try:
            method, records, _ = _records(suite, spec, place.pair, deployment, place.batch_size)
        except SkitError as error:
            return CellRun(CellResult(missing=str(error).removeprefix(f"{spec}: ")))
        return CellRun(_result(records), _predictor(method))


@gc_paused()
def run_fleet(name: str, quick: bool, spec: str, fleet: str) -> FleetRun:
    """Return the result of a policy in one fleet, or the reason why there is none.

    Every device makes the rounds of one request alone, none of which it may leave to the server's
    own decoding.
    """
    with without_user_files():
        suite = load(name, quick)
        table = suite.table.fleets[fleet]
        deployment = suite.deployment(table.deployment)
        try:
            method, records, log = _records(
                suite, spec, table.pair, deployment, server_decodes=False
            )
            result = fleet_result(table, method, deployment, records, quick, log)
        except SkitError as error:
            return FleetRun(FleetResult(missing=str(error).removeprefix(f"{spec}: ")))
        return FleetRun(result, _predictor(method))


def _records(
    suite: Suite,
    spec: str,
    pair: str,
    deployment: Deployment,
    batch_size: int = 1,
    *,
    server_decodes: bool = True,
) -> SuiteRecords:
    decode = _replayed if suite.table.pairs[pair].trace else _decoded
    return decode(suite, spec, pair, deployment, batch_size, server_decodes)


def _replayed(
    suite: Suite,
    spec: str,
    pair: str,
    deployment: Deployment,
    batch_size: int,
    server_decodes: bool,
) -> SuiteRecords:
    trace = suite.trace(pair)
    requests = suite.requests(pair)
    named = parse_method(fit_spec(spec, trace.header))
    method = prepare_for_replay(named, trace, deployment, batch_size, server_decodes=server_decodes)
    _require_unseen(method, trace.known(trace.recording.prompts, "prompts"))
    log = WorkLog()
    replayed = replay(
        method,
        trace.header,
        requests,
        deployment=deployment,
        batch_size=batch_size,
        seed=suite.table.seed,
        log=log,
    )
    records = {record.request_id: record for record in replayed}
    for request in requests:
        require(
            records[request.request_id].output_ids == request.output_ids,
            "its output is not the target's answer",
        )
    return SuiteRecords(method, [records[request.request_id] for request in requests], log)


def _decoded(
    suite: Suite,
    spec: str,
    pair: str,
    deployment: Deployment,
    batch_size: int,
    server_decodes: bool,
) -> SuiteRecords:
    prompts = suite.prompts(pair, batch_size)
    draft = suite.table.pairs[pair].draft
    method = parse_method(spec)
    others = [model for model in method.drafting.models if model != DRAFT]
    require(not others, f"it drafts with {', '.join(others)}, which a synthetic pair does not have")
    answers = _answers(prompts, draft, deployment)
    reference = answers if method.needs_reference else NO_ANSWERS
    records = prompts.decode(spec, deployment, draft, reference, server_decodes=server_decodes)
    for record in records:
        require(
            record.output_ids == answers[record.request_id], "its output is not the target's answer"
        )
    return SuiteRecords(method, records)


_answered: dict[tuple[SyntheticPrompts, str], dict[str, list[int]]] = {}


def _answers(prompts: SyntheticPrompts, draft: str, deployment: Deployment) -> dict[str, list[int]]:
    """Return what the target of a synthetic pair answers, which is the same in every deployment, by
    request id.
    """
    key = prompts, draft
    if key not in _answered:
        records = prompts.decode(BASELINE, deployment, draft)
        _answered[key] = {record.request_id: record.output_ids for record in records}
    return _answered[key]


def _predictor(method: Method) -> PredictorUsed | None:
    predictor = method.uses().get("predictor")
    if not isinstance(predictor, dict):
        return None
    return PredictorUsed(**{name: predictor[name] for name in PredictorUsed.__struct_fields__})


def _require_unseen(method: Method, prompts: Sequence[str]) -> None:
    """Raise SkitError for a policy that was trained on prompts of the half for results."""
    seen = len(method.trained_on & set(prompts))
    require(
        not seen,
        f"it was trained on {seen} of the suite's prompts, so that its results would not count",
    )


def _result(records: Sequence[RequestRecord]) -> CellResult:
    rounds = RequestGroup(records).rounds
    waste = wasted_time(rounds)
    told = [
        [r.drafted, r.submitted, r.accepted, r.committed]
        for record in records
        for r in record.rounds
    ]
    return CellResult(
        seconds=tuple(rounded(record.e2e_s or 0.0) for record in records),
        rounds=tuple(len(record.rounds) for record in records),
        tokens=int(rounds.sum("joined")),
        drafted=int(rounds.sum("drafted")),
        submitted=int(rounds.sum("submitted")),
        accepted=int(rounds.sum("accepted")),
        wdt=rounded(waste["wdt"]),
        wdt_share=None if waste["wdt_share"] is None else rounded(waste["wdt_share"]),
        rounds_sha256=sha256(json.encode(told)).hexdigest(),
    )


def _policy(suite: Suite, spec: str, runs: Mapping[str, CellRun | FleetRun]) -> PolicyResult:
    method = parse_method(spec)
    options = resolved_options(spec)
    kind = type(method)
    package, version = distribution(spec.partition(":")[0])
    predictors = [run.predictor for run in runs.values() if run.predictor]
    return PolicyResult(
        spec=spec,
        options=options,
        options_sha256=content_hash(options),
        summary=summary_of(kind),
        source=kind.source,
        reported=kind.reported_result,
        group=kind.group,
        is_bound=method.is_bound,
        package=package,
        version=version,
        source_sha256=source_hash(kind),
        predictor=predictors[0] if predictors else None,
        lowered=", ".join(sorted(_lowered(suite, spec))),
        cells={name: run.result for name, run in runs.items() if isinstance(run, CellRun)},
        fleets={name: run.result for name, run in runs.items() if isinstance(run, FleetRun)},
    )


def _lowered(suite: Suite, spec: str) -> Iterator[str]:
    for name, pair in suite.table.pairs.items():
        if pair.trace and (limit := lowered_limit(spec, suite.trace(name).header)):
            yield f"{limit['option']}={limit['lowered']}"


def distribution(name: str) -> tuple[str, str]:
    """Return the distribution that a method comes from, and its version."""
    for point in entry_points(group=methods.group):
        if point.name == name and point.dist is not None:
            return point.dist.name, point.dist.version
    return KIT, __version__


def is_current(result: SuiteResult) -> bool:
    """Return whether a policy is installed here with the source that it had when the result was
    made.
    """
    name = result.policy.spec.partition(":")[0]
    policy = result.policy
    return (
        name in methods.all()
        and source_hash(type(parse_method(policy.spec))) == policy.source_sha256
    )
