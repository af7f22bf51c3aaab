"""`skit load`: a server under many devices."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint, Link
from specbench_kit.deployments.description import describe, finite
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
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
from specbench_kit.traces.replay import prepare_for_replay, recording_deployment
from specbench_kit.traces.trace import RequestTrace, TraceFile

Fields = dict[str, Any]
TRACE = "trace.parquet"
OF_SERVER = ("frame_s", "turn_s", "turn_answer_s", "answer_s")
BESIDE = ("wire_s", "busy_s", "verify_cv", *OF_SERVER)
RAMP_S = 5.0
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A folder, and what stands in its summary."""

    folder: Path
    run: Fields
    summary: Fields
    text: str


def load(settings: LoadSettings, told: ProgressCallback) -> LoadOutcome:
    """Every number of devices, one after the other, at the server; a new folder with a report."""
    trace = TraceFile(settings.trace)
    connection = _connect(settings, trace)
    welcome = connection.welcome
    if max(settings.devices) > welcome.limits.slots:
        raise SkitError(
            f"the server holds the KV of {welcome.limits.slots} sessions, and whose is evicted is not simulated: start "
            f"it with --slots {max(settings.devices)}"
        )
    deployment, beside = _deployment(settings, trace, welcome.model_hash)
    config = {**settings.described(), "scheduler": welcome.scheduler, "max_batch": welcome.limits.batch}
    scenarios = {devices: make_scenario(config, devices, trace, deployment) for devices in settings.devices}
    folder = unused_folder(settings.out, "load", welcome.scheduler, {**config, "server": settings.server})
    run = _describe(settings, config, trace, deployment, welcome) | beside
    folder.mkdir(parents=True)
    shutil.copyfile(settings.trace, folder / TRACE)
    texts, rows, machine = _texts(trace), list[Fields](), list[Fields]()
    for done, (devices, scenario) in enumerate(scenarios.items()):
        told(f"{devices} devices", done, len(scenarios))
        watch = Watch(probe_here(), torch.device("cpu"))
        driven = LoadDriver(scenario, settings.seed, connection, texts).run()
        machine.append(watch.end({}))
        slower = _slower(scenario, driven.result, beside)
        rows.append({**summary_row(scenario, devices, driven.result), "slower": slower, "late_s": list(driven.late_s)})
        if settings.events:
            write_events(folder / "events", f"devices-{devices}", driven.result)
        connection.reconnect()
    told("done", len(scenarios), len(scenarios))
    connection.close()
    summary: Fields = {"rows": rows, "late": [row["devices"] for row in rows if row["late_s"][1] > LATE_S]}
    run["machine"] = machine
    text = report.load_report(run, summary)
    _write(folder, run, summary, text)
    return LoadOutcome(folder, run, summary, text)


def _connect(settings: LoadSettings, trace: TraceFile) -> Connection:
    """The trace says which target it is of."""
    wanted = str(trace.provenance("models", "target", "hash"))
    token = settings.server_token.read_text(encoding="utf-8").strip() if settings.server_token else ""
    roots = settings.server_ca.read_bytes() if settings.server_ca else None
    try:
        return Connection(settings.server, ClientIdentity("", 0, token, wanted, roots))
    except ConnectionLostError as lost:
        raise SkitError(f"no server answers at {settings.server}: {lost}; start one with skit serve") from lost


def _deployment(settings: LoadSettings, trace: TraceFile, target: str) -> tuple[Deployment, dict[str, float]]:
    """Devices as fast as the trace's machine, the link that was given, and a server as fast as its profile says.

    Besides, what the profile found rounds and messages to take beside verifications.
    """
    here, link = recording_deployment(trace.header), settings.link or Link()
    found = loading.load(settings.profile) if settings.profile else loading.find_measured(target, "verifier", "auto")
    if found is None:
        raise SkitError(
            "no profile of the server's target on this machine: run skit profile-server, and give it as --profile"
        )
    draft = Endpoint("device", TableModel((settings.draft_s or trace.header.draft_s,)), origin=here.drafter.origin)
    verifier = Endpoint(found.device, found.latency(), origin=f"profile {found.name}")
    deployment = replace(
        here,
        name="load",
        drafter=draft,
        verifier=verifier,
        link=link,
        placement="edge",
        cached_prompts=False,
        description="Devices that draft for a real server; only their own time and the link are modelled.",
    )
    return deployment, {name: float(found.fit.get(name, 0.0)) for name in BESIDE}


def make_scenario(config: Fields, devices: int, trace: TraceFile, deployment: Deployment) -> Scenario:
    """What so many devices do at the server."""
    method = prepare_for_replay(parse_method(config["method"]), trace, deployment)
    return Scenario(
        deployment,
        ServingSystem("a server of skit serve", method=config["method"], scheduler=config["scheduler"]),
        trace_source(trace, method, deployment),
        devices,
        slo=parse_slo(config["slo"][0]),
        arrivals=ClosedLoop(ramp_s=min(RAMP_S, config["warmup_s"] / 2)),
        scheduler=config["scheduler"],
        max_batch=config["max_batch"],
        learned=method.learned,
        duration_s=config["duration_s"],
        warmup_s=config["warmup_s"],
    )


def _texts(trace: TraceFile) -> list[RequestTrace]:
    """Those that have rounds, as the source counts them."""
    return [text for text in trace if text.output_ids]


def summary_row(scenario: Scenario, devices: int, result: SimulationResult) -> Fields:
    """A row of a summary."""
    found = compute_metrics(scenario, result)
    rounds = result.rounds
    counted = np.isfinite(rounds["answered_s"]) & (rounds["sent_s"] >= scenario.warmup_s)
    round_s = (rounds["answered_s"] - rounds["sent_s"])[counted]
    return {"devices": devices, "round_s": dict(_spread(round_s)), "figures": found}


def _slower(scenario: Scenario, result: SimulationResult, beside: Mapping[str, float]) -> float | None:
    """The time that batches took, over what was expected of them beside the answers that left."""
    started_s, ended_s, expected_s, size = (
        result.batches[name] for name in ("started_s", "ended_s", "expected_s", "size")
    )
    behind = answers_leaving(size[:-1], started_s[1:] - ended_s[:-1], beside["frame_s"])
    thought_s = expected_s[1:] - started_s[1:] + beside["answer_s"] * (behind - size[1:])
    counted = started_s[1:] >= scenario.warmup_s
    taken_s, expected = (ended_s - started_s)[1:][counted].sum(), thought_s[counted].sum()
    return float(taken_s / expected) if expected > 0 else None


def _spread(values: Any) -> Iterator[tuple[str, float | None]]:
    for name, share in PERCENTILES.items():
        yield name, float(np.quantile(values, share)) if len(values) else None


def _describe(settings: LoadSettings, config: Fields, trace: TraceFile, deployment: Deployment, welcome: Any) -> Fields:
    """The content of `run.json`."""
    return {
        "command": "load",
        "time_kind": "measured",
        "dataset": trace.header.run.get("dataset"),
        "models": trace.header.run.get("models") or {},
        "config": config,
        "server": {"kind": welcome.server, "device": welcome.device, "scheduler": welcome.scheduler},
        "deployment": describe(deployment),
        **({"shaped_link": finite(settings.link)} if settings.link else {}),
        **provenance.collect(settings.argv),
    }


def _write(folder: Path, run: Fields, summary: Fields, text: str) -> None:
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    write_text(folder / "report.md", text)
