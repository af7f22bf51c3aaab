"""One run of `skit load`: a server under the load of many devices, and how fast it verified beside
its profile.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from msgspec import UNSET, structs

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import Written, convert, stated
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.description import describe
from specbench_kit.live.connection import Connection
from specbench_kit.live.protocol.verification_pb2 import Welcome
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.latency import distribution
from specbench_kit.metrics.vocabulary import DistributionValues
from specbench_kit.profilers import loading
from specbench_kit.profilers.base import Profile
from specbench_kit.reports.study import finish
from specbench_kit.runs import provenance
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunFields, ServerReference
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.machine.limits import MachineReadings
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import LaneTimes, Watch
from specbench_kit.serving.acceptance_spec import require_same_rounds, trace_source
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.arrivals import ClosedLoop, Poisson
from specbench_kit.serving.events import write_events
from specbench_kit.serving.metrics import compute_metrics, tail_of_gaps
from specbench_kit.serving.network import answers_leaving
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import ServingSystem
from specbench_kit.studies.load.drive import DrivenLoad, LoadDriver
from specbench_kit.studies.load.kind import LOAD, LoadStudy
from specbench_kit.studies.load.report import (
    LATE_S,
    LoadConfig,
    LoadFigures,
    LoadSummary,
    MeasuredLoad,
    ServedLoad,
)
from specbench_kit.studies.load.settings import LoadPoint, LoadSettings
from specbench_kit.traces.draft_limits import fit_spec, lowered_limits
from specbench_kit.traces.replay import prepare_for_replay, recording_deployment
from specbench_kit.traces.trace import TOKEN_IDS, RequestTrace, TraceFile

TRACE = "trace.parquet"
NETWORK_TIMES = ("frame_s", "turn_s", "turn_answer_s", "answer_s")
"""Fields of a server profile's fit that are parameters of the simulated network, too."""
MEASURED_OVERHEAD = ("wire_s", "verify_cv", *NETWORK_TIMES)
"""Fields of a server profile's fit about what a round takes besides its verification."""
LONGEST_RAMP_S = 5.0
BASELINE = "autoregressive"
"""Method of devices with speculation off: they ask for one token after the other."""


def load(settings: LoadSettings, progress: ProgressCallback) -> LoadStudy:
    """Load the server with every number of devices, at every rate, and write a run directory with a
    report.
    """
    parse_method(settings.method)  # an unknown one, or no SLO, is an error before a server is asked
    parse_slo(settings.promise)
    trace = TraceFile(settings.trace)
    trace.header.require(TOKEN_IDS, "skit load sends drafted tokens")
    address = ServerAddress(settings.server, settings)
    # The server refuses a trace that was recorded with another target than its own.
    connection = address.connect(model_hash=trace.model_hash("target"))
    welcome = connection.welcome
    if max(settings.devices) > welcome.limits.slots:
        raise SkitError(
            f"the server holds the KV of {welcome.limits.slots} sessions, and evictions are not simulated: start it "
            f"with --slots {max(settings.devices)}"
        )
    profile = _profile(settings, welcome.model_hash)
    deployment = _deployment(settings, trace, profile)
    overhead = {name: float(profile.fit.get(name, 0.0)) for name in MEASURED_OVERHEAD}
    config = {
        **settings.described(),
        "scheduler": welcome.scheduler,
        "max_batch": welcome.limits.batch,
    }
    config["method"] = fit_spec(settings.method, trace.header)
    asked = convert(LoadConfig, config)
    scenarios = {point: make_scenario(asked, point, trace, deployment) for point in settings.points}
    require(
        not settings.baseline or any(one.source.typical.longest for one in scenarios.values()),
        f"--baseline has no effect: {config['method']} drafts nothing itself; leave it out",
    )
    plain = structs.replace(asked, method=BASELINE)
    baselines = {
        point: make_scenario(plain, point, trace, deployment)
        for point in settings.points
        if settings.baseline
    }
    requests = [
        request for request in trace if request.output_ids
    ]  # the source of rounds skips the others as well
    _require_context(requests, trace.header.max_draft, welcome.limits.context)
    folder = unused_folder(
        settings.out, "load", welcome.scheduler, {**config, "server": settings.server}
    )
    description = {
        **_describe(settings, config, trace, deployment, welcome),
        **_describe_profile(profile),
        **overhead,
    }
    folder.mkdir(parents=True)
    shutil.copyfile(settings.trace, folder / TRACE)
    rows = list[MeasuredLoad]()
    machine = list[MachineReadings]()
    of_all = len(scenarios) + len(baselines)
    done = 0
    for number, (point, scenario) in enumerate(scenarios.items()):
        sides = [scenario, *([baselines[point]] if point in baselines else [])]
        served = {}
        # The side that begins changes, so that neither always meets the server warmer or later.
        for side in reversed(sides) if number % 2 else sides:
            progress(str(point), done, of_all)
            served[side is scenario], readings = _run_load(
                side, point, settings, connection, requests, overhead, folder
            )
            machine.append(readings)
            # A new stream drops the answers to the rounds that were in flight at the end of this
            # load.
            connection.reconnect()
            done += 1
        plain_side = served.get(False, UNSET)
        rows.append(MeasuredLoad(**structs.asdict(served[True]), plain=plain_side))
    progress("done", of_all, of_all)
    connection.close()
    summary = LoadSummary(
        rows, [row.devices for row in rows if any(side.late_s[1] > LATE_S for side in row.sides)]
    )
    run = {**description, "machine": machine}
    return finish(LOAD, folder, run, summary)


def _run_load(
    scenario: Scenario,
    point: LoadPoint,
    settings: LoadSettings,
    connection: Connection,
    requests: Sequence[RequestTrace],
    overhead: Mapping[str, float],
    folder: Path,
) -> tuple[ServedLoad, MachineReadings]:
    """Run one load, and return what the summary says of it and the readings of the machine."""
    watch = Watch(probe_here(), torch.device("cpu"))
    before = read_processor_time()
    driven = LoadDriver(scenario, settings.seed, connection, requests).run()
    speed = server_speed(scenario, driven, overhead)
    # The server may run on another machine, so that nothing is known of its processor seconds.
    lane = LaneTimes(read_processor_time().since(before), speed.steps, children_s=None)
    readings = watch.end({"the server": lane})
    if settings.events:
        rate = "" if point.rate is None else f"-rate-{point.rate:g}"
        side = "-baseline" if settings.baseline and scenario.system.method == BASELINE else ""
        write_events(folder / "events", f"devices-{point.devices}{rate}{side}", driven.result)
    row = ServedLoad(
        **structs.asdict(summary_row(scenario, point, driven.result)),
        slower=speed.slower,
        estimate=speed.estimate,
        scatter=speed.scatter,
        late_s=driven.late_s,
        answers=driven.answers.describe(),
        itl_p99=tail_of_gaps(scenario, driven.result) if settings.baseline else UNSET,
    )
    return row, readings


def _require_context(requests: Sequence[RequestTrace], longest_draft: int, context: int) -> None:
    """Raise SkitError if a session of the server is too short for a response and a draft behind
    it.
    """
    needed = (
        longest_draft
        - 1
        + max(len(request.prompt_ids) + len(request.output_ids) for request in requests)
    )
    if needed > context:
        raise SkitError(
            f"the server's sessions hold {context} tokens, and the trace needs {needed}: start the server with "
            f"--session-tokens {needed}"
        )


def _profile(settings: LoadSettings, target: str) -> Profile:
    """Return the profile that is given, or else one of the target that was measured on this
    machine.
    """
    profile = (
        loading.load(settings.profile)
        if settings.profile
        else loading.find_measured(target, "verifier", "auto")
    )
    if profile is None:
        raise SkitError(
            "no profile of the server's target on this machine: run skit profile-server, and give it as --profile"
        )
    return profile


def _deployment(settings: LoadSettings, trace: TraceFile, profile: Profile) -> Deployment:
    """Return the deployment to simulate.

    Devices are as fast as the trace's machine, the link is the emulated one, and the server is as
    fast as its profile.
    """
    recording = recording_deployment(trace.header)
    draft_times = TableModel((settings.draft_s or trace.header.draft_s,))
    return replace(
        recording,
        name="load",
        drafter=Endpoint("device", draft_times, origin=recording.drafter.origin),
        verifier=Endpoint(profile.device, profile.latency(), origin=f"profile {profile.name}"),
        link=settings.link or Link(),
        placement="edge",
        cached_prompts=False,
        description="Devices that draft for a real server; only their own time and the link are modelled.",
    )


def make_scenario(
    config: LoadConfig, point: LoadPoint, trace: TraceFile, deployment: Deployment
) -> Scenario:
    """Return the scenario of one load."""
    ramp_s = min(LONGEST_RAMP_S, config.warmup_s / 2)
    method = prepare_for_replay(parse_method(config.method), trace, deployment)
    require_same_rounds(method, "skit bench --server drafts with it, for one request at a time")
    return Scenario(
        deployment,
        ServingSystem("a server of skit serve", method=config.method, scheduler=config.scheduler),
        trace_source(trace, method, deployment),
        point.devices,
        slo=parse_slo(config.slo[0]),
        arrivals=ClosedLoop(ramp_s=ramp_s) if point.rate is None else Poisson(point.rate),
        scheduler=config.scheduler,
        max_batch=config.max_batch,
        duration_s=config.duration_s,
        warmup_s=config.warmup_s,
        require_attainable_slo=False,
    )


def summary_row(scenario: Scenario, point: LoadPoint, result: SimulationResult) -> LoadFigures:
    """Return the summary's row of a load or of its simulation: metrics, and percentiles of the
    round trips.
    """
    metrics = compute_metrics(scenario, result)
    rounds = result.rounds
    counted = np.isfinite(rounds["answered_s"]) & (rounds["sent_s"] >= scenario.warmup_s)
    round_s = (rounds["answered_s"] - rounds["sent_s"])[counted]
    trips = DistributionValues(**distribution(round_s))
    return LoadFigures(devices=point.devices, rate=point.rate, round_s=trips, figures=metrics)


def _describe_profile(profile: Profile) -> Written:
    """Return what `run.json` says about the profile: how far it is to be trusted, and round trips
    of a busy server.
    """
    busy = profile.fit.get("busy_by_sessions") or [
        [1.0, 0.0]
    ]  # which only skit profile-server measures
    trust = {"name": profile.name, "r2": profile.test_r2, "disturbed": list(profile.disturbances)}
    return {"profile": trust, "busy_by_sessions": busy}


def _describe(
    settings: LoadSettings,
    config: OptionValues,
    trace: TraceFile,
    deployment: Deployment,
    welcome: Welcome,
) -> RunFields:
    """Return the content of `run.json`."""
    return {
        "command": "load",
        "time_kind": "measured",
        "dataset": stated(trace.recording.dataset),
        "models": stated(trace.recording.models),
        "config": config,
        "server": stated(ServerReference(welcome.server, welcome.scheduler, welcome.device)),
        "deployment": describe(deployment),
        **({"shaped_link": asdict(settings.link)} if settings.link else {}),
        **lowered_limits([settings.method], trace.header),
        **provenance.collect(settings.argv),
    }


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """Measured verification times over the profile's, and the server's own estimates over the
    profile's.

    Both are ratios of sums over the batches behind the warm-up; None without batches. `steps` are
    the ratios of single batches, one list for each number of requests: all of a list are equal
    where nothing else runs on the server.
    """

    slower: float | None
    estimate: float | None
    steps: list[list[float]]

    @property
    def scatter(self) -> float | None:
        """The standard deviation over the mean of the times of equal batches; None without
        batches.
        """
        # A wrong time of the profile for batches of some size does not count as scatter.
        deviations = [np.log(ratios) - np.log(ratios).mean() for ratios in self.steps]
        return float(np.sqrt(np.expm1(np.concatenate(deviations).var()))) if deviations else None


def server_speed(
    scenario: Scenario, load: DrivenLoad, overhead: Mapping[str, float]
) -> ServerSpeed:
    """Return the speed of the server by the profile that the scenario's verifier has.

    The profile is asked for every batch, because a server without it has estimates of its own. Its
    time includes one answer sent per request. It is corrected by the answers of the previous batch
    that were really being sent when each batch began.
    """
    batches = load.result.batches
    verifier = scenario.deployment.verifier
    started_s, ended_s, estimated_end_s, size = (
        batches[name] for name in ("started_s", "ended_s", "expected_s", "size")
    )
    profile_s = np.array([verifier.pass_s(rows) for rows in load.batch_rows])
    # The answers of a batch may be missing where the load ended, and another client may have had a
    # part in one.
    counted = (started_s >= scenario.warmup_s) & (size == list(map(len, load.batch_rows)))
    steps = defaultdict[int, list[float]](list)
    for index in np.flatnonzero(counted & (profile_s > 0)).tolist():
        steps[len(load.batch_rows[index])].append(
            float((ended_s[index] - started_s[index]) / profile_s[index])
        )
    leaving = answers_leaving(size[:-1], started_s[1:] - ended_s[:-1], overhead["frame_s"])
    corrected_s = profile_s[1:] + overhead["answer_s"] * (leaving - size[1:])
    return ServerSpeed(
        _ratio((ended_s - started_s)[1:][counted[1:]], corrected_s[counted[1:]]),
        _ratio((estimated_end_s - started_s)[counted], profile_s[counted]),
        list(steps.values()),
    )


def _ratio(seconds: Floats, profile_s: Floats) -> float | None:
    return float(seconds.sum() / profile_s.sum()) if profile_s.sum() > 0 else None
