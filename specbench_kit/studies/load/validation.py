"""`skit validate`: the simulation of a load that was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.deployments.restoring import restore
from specbench_kit.reports.pages import live
from specbench_kit.reports.pages.live_figures import write_validation
from specbench_kit.runs.folder import to_json, write_text
from specbench_kit.serving.network import Network
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.load.run import NETWORK_TIMES, TRACE, LoadOutcome, make_scenario, summary_row
from specbench_kit.studies.load.settings import LoadPoint
from specbench_kit.traces.trace import TraceFile

VALIDATION = "validation"
SEEDS = 5
"""Simulations of every load, whose figures are averaged: the measurement is one of many possible courses."""


def validate(folder: Path, progress: ProgressCallback) -> LoadOutcome:
    """Simulate the scenarios of a load, and write the comparison with the measurement into its run directory.

    Each is simulated twice, with the server as fast as its profile, and as fast as its batches were during the load:
    the errors of the profile and of the simulator can thus be told apart. In both, the scheduler's estimates are off
    from the profile as far as the server's own were.
    """
    run = _read(folder / "run.json")
    summary = _read(folder / "summary.json")
    if run.get("command") != "load":
        raise SkitError(f"{folder} is no run of skit load")
    trace = TraceFile(folder / TRACE)
    seed = run["config"]["seed"]
    rows: list[live.ValidatedLoad] = []
    for done, measured in enumerate(summary["rows"]):
        point = LoadPoint(measured["devices"], measured.get("rate"))
        progress(str(point), done, len(summary["rows"]))
        scenario = _scenario(run, point, trace, measured.get("estimate") or 1.0)
        means = []
        for variant in (scenario, _slowed(scenario, measured)):
            drawn = [summary_row(variant, point, simulate(variant, number)) for number in range(seed, seed + SEEDS)]
            means.append(live.mean_of(drawn))
        simulated, as_fast = means
        values = live.values_of(measured)
        rows.append(
            live.ValidatedLoad(
                *point,
                measured,
                simulated,
                live.deviations(values, simulated),
                as_fast,
                live.deviations(values, as_fast),
            )
        )
    progress("done", len(rows), len(rows))
    validation = live.Validation(SEEDS, rows)
    document = write_validation(folder, VALIDATION, run, validation)
    result: JsonObject = to_builtins(validation)
    write_text(folder / f"{VALIDATION}.json", to_json(result))
    return LoadOutcome(folder, run, result, document)


def _scenario(run: JsonObject, point: LoadPoint, trace: TraceFile, estimate: float) -> Scenario:
    """Return the scenario of a load, with the overhead of server and network that its profile measured.

    The scheduler estimates `estimate` times the profile's seconds, as the server's own did.
    """
    frame_s = run.get("frame_s", 0.0)
    wire_s = run.get("wire_s", 0.0) + _busy_s(run, point.devices)
    deployment = restore(run["deployment"])
    # `wire_s` contains the sending of one message each way, which the simulated network adds as `frame_s`.
    link = replace(deployment.link, rtt_s=deployment.link.rtt_s + max(0.0, wire_s - 2 * frame_s))
    scenario = make_scenario(run["config"], point, trace, replace(deployment, link=link))
    network = Network(**{name: run.get(name, 0.0) for name in NETWORK_TIMES})
    estimator = EstimatorError(estimate, model=deployment.verifier.latency)
    return replace(scenario, network=network, verify_cv=run.get("verify_cv", 0.0), estimator=estimator)


def _busy_s(run: JsonObject, devices: int) -> float:
    """Return by how much round trips are longer than a single device's, between the numbers that were measured."""
    sessions, seconds = zip(*run.get("busy_by_sessions", [[1.0, 0.0]]), strict=True)
    return float(np.interp(devices, sessions, seconds))


def _slowed(scenario: Scenario, measured: JsonObject) -> Scenario:
    """Return the scenario with verifications as slow and as uneven as measured, unknown to the scheduler."""
    deployment = scenario.deployment
    latency = ScaledLatency(deployment.verifier.latency, measured.get("slower") or 1.0)
    deployment = replace(deployment, verifier=replace(deployment.verifier, latency=latency))
    return replace(scenario, deployment=deployment, verify_cv=measured.get("scatter") or scenario.verify_cv)


def _read(path: Path) -> JsonObject:
    try:
        content = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SkitError(f"cannot read {path}: {reason}; name the folder of a finished run of skit load") from error
    if not isinstance(content, dict):
        raise SkitError(f"{path} holds no object: name the folder of a run of skit load")
    return content
