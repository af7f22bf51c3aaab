"""`skit load`: a server under the load of many devices."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint, Link
from specbench_kit.deployments.description import describe, finite
from specbench_kit.live.connection import ServerAddress
from specbench_kit.live.protocol.verification_pb2 import Welcome
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers import loading
from specbench_kit.reports.live import report
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.serving.acceptance_spec import trace_source
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.events import write_events
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_overhead import answers_leaving
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import ServingSystem
from specbench_kit.studies.load.drive import LATE_S, LoadDriver
from specbench_kit.studies.load.settings import LoadSettings
from specbench_kit.traces.draft_limits import fit_spec, lowered_limits
from specbench_kit.traces.replay import prepare_for_replay, recording_deployment
from specbench_kit.traces.trace import TraceFile

TRACE = "trace.parquet"
NETWORK_TIMES = ("frame_s", "turn_s", "turn_answer_s", "answer_s")
"""Fields of a server profile's fit that are parameters of the simulated network, too."""
MEASURED_OVERHEAD = ("wire_s", "busy_s", "verify_cv", *NETWORK_TIMES)
"""Fields of a server profile's fit about what a round takes besides its verification."""
LONGEST_RAMP_S = 5.0
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A run directory, its `run.json` and summary, and its report."""

    folder: Path
    run: JsonObject
    summary: JsonObject
    text: str


def load(settings: LoadSettings, progress: ProgressCallback) -> LoadOutcome:
    """Load the server with every number of devices in turn, and write a run directory with a report."""
    trace = TraceFile(settings.trace)
    address = ServerAddress(settings.server, settings.server_token, settings.server_ca)
    # The server refuses a trace that was recorded with another target than its own.
    connection = address.connect(model_hash=str(trace.provenance("models", "target", "hash")))
    welcome = connection.welcome
    if max(settings.devices) > welcome.limits.slots:
        raise SkitError(
            f"the server holds the KV of {welcome.limits.slots} sessions, and evictions are not simulated: start it "
            f"with --slots {max(settings.devices)}"
        )
    deployment, overhead = _deployment(settings, trace, welcome.model_hash)
    config = {**settings.described(), "scheduler": welcome.scheduler, "max_batch": welcome.limits.batch}
    config["method"] = fit_spec(settings.method, trace.header)
    scenarios = {devices: make_scenario(config, devices, trace, deployment) for devices in settings.devices}
    folder = unused_folder(settings.out, "load", welcome.scheduler, {**config, "server": settings.server})
    description = {**_describe(settings, config, trace, deployment, welcome), **overhead}
    folder.mkdir(parents=True)
    shutil.copyfile(settings.trace, folder / TRACE)
    requests = [request for request in trace if request.output_ids]  # the source of rounds skips the others as well
    rows, machine = list[JsonObject](), list[JsonObject]()
    for done, (devices, scenario) in enumerate(scenarios.items()):
        progress(f"{devices} devices", done, len(scenarios))
        watch = Watch(probe_here(), torch.device("cpu"))
        driven = LoadDriver(scenario, settings.seed, connection, requests).run()
        machine.append(watch.end({}))
        slowdown = _slowdown(scenario, driven.result, overhead)
        rows.append(
            {**summary_row(scenario, devices, driven.result), "slower": slowdown, "late_s": list(driven.late_s)}
        )
        if settings.events:
            write_events(folder / "events", f"devices-{devices}", driven.result)
        # A new stream drops the answers to the rounds that were in flight at the end of this load.
        connection.reconnect()
    progress("done", len(scenarios), len(scenarios))
    connection.close()
    summary = {"rows": rows, "late": [row["devices"] for row in rows if row["late_s"][1] > LATE_S]}
    run = {**description, "machine": machine}
    text = report.load_report(run, summary)
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    write_text(folder / "report.md", text)
    return LoadOutcome(folder, run, summary, text)


def _deployment(settings: LoadSettings, trace: TraceFile, target: str) -> tuple[Deployment, dict[str, float]]:
    """Return the deployment to simulate, and the overhead of the server beyond its verifications.

    Devices are as fast as the trace's machine, the link is the emulated one, and the server is as fast as its profile.
    """
    recording = recording_deployment(trace.header)
    profile = loading.load(settings.profile) if settings.profile else loading.find_measured(target, "verifier", "auto")
    if profile is None:
        raise SkitError(
            "no profile of the server's target on this machine: run skit profile-server, and give it as --profile"
        )
    draft_times = TableModel((settings.draft_s or trace.header.draft_s,))
    deployment = replace(
        recording,
        name="load",
        drafter=Endpoint("device", draft_times, origin=recording.drafter.origin),
        verifier=Endpoint(profile.device, profile.latency(), origin=f"profile {profile.name}"),
        link=settings.link or Link(),
        placement="edge",
        cached_prompts=False,
        description="Devices that draft for a real server; only their own time and the link are modelled.",
    )
    return deployment, {name: float(profile.fit.get(name, 0.0)) for name in MEASURED_OVERHEAD}


def make_scenario(config: JsonObject, devices: int, trace: TraceFile, deployment: Deployment) -> Scenario:
    """Return the scenario of a load with `devices` devices."""
    method = prepare_for_replay(parse_method(config["method"]), trace, deployment)
    return Scenario(
        deployment,
        ServingSystem("a server of skit serve", method=config["method"], scheduler=config["scheduler"]),
        trace_source(trace, method, deployment),
        devices,
        slo=parse_slo(config["slo"][0]),
        arrivals=ClosedLoop(ramp_s=min(LONGEST_RAMP_S, config["warmup_s"] / 2)),
        scheduler=config["scheduler"],
        max_batch=config["max_batch"],
        learned=method.learned,
        duration_s=config["duration_s"],
        warmup_s=config["warmup_s"],
    )


def summary_row(scenario: Scenario, devices: int, result: SimulationResult) -> dict[str, object]:
    """Return the summary's row of a load or of its simulation: metrics, and percentiles of the round trips."""
    metrics, rounds = compute_metrics(scenario, result), result.rounds
    counted = np.isfinite(rounds["answered_s"]) & (rounds["sent_s"] >= scenario.warmup_s)
    round_s = (rounds["answered_s"] - rounds["sent_s"])[counted]
    percentiles = {
        name: float(np.quantile(round_s, share)) if len(round_s) else None for name, share in PERCENTILES.items()
    }
    return {"devices": devices, "round_s": percentiles, "figures": metrics}


def _slowdown(scenario: Scenario, result: SimulationResult, overhead: Mapping[str, float]) -> float | None:
    """Return the time that batches took over the time that the profile expects; None without batches.

    The profile's time includes one answer sent per request. It is corrected by the answers of the previous batch that
    were really being sent when each batch began.
    """
    started_s, ended_s, expected_end_s, size = (
        result.batches[name] for name in ("started_s", "ended_s", "expected_s", "size")
    )
    leaving = answers_leaving(size[:-1], started_s[1:] - ended_s[:-1], overhead["frame_s"])
    expected_s = expected_end_s[1:] - started_s[1:] + overhead["answer_s"] * (leaving - size[1:])
    counted = started_s[1:] >= scenario.warmup_s
    measured, expected = (ended_s - started_s)[1:][counted].sum(), expected_s[counted].sum()
    return float(measured / expected) if expected > 0 else None


def _describe(
    settings: LoadSettings, config: JsonObject, trace: TraceFile, deployment: Deployment, welcome: Welcome
) -> JsonObject:
    """Return the content of `run.json`."""
    return {
        "command": "load",
        "time_kind": "measured",
        "dataset": trace.header.run.get("dataset"),
        "models": trace.header.run.get("models") or {},
        "config": config,
        "server": {"kind": welcome.server, "device": welcome.device, "scheduler": welcome.scheduler},
        "deployment": describe(deployment),
        **({"shaped_link": finite(settings.link)} if settings.link else {}),
        **lowered_limits([settings.method], trace.header),
        **provenance.collect(settings.argv),
    }
