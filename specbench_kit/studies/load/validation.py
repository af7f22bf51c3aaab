"""`skit validate`: the simulation of a load that was measured."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject, convert, parse
from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.deployments.restoring import restore
from specbench_kit.runs.folder import to_json, write_text
from specbench_kit.serving.network import Network
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.load import report
from specbench_kit.studies.load.run import TRACE, LoadOutcome, make_scenario, summary_row
from specbench_kit.studies.load.settings import LoadPoint
from specbench_kit.traces.trace import TraceFile

T = TypeVar("T")

VALIDATION = "validation"
SEEDS = 5
"""Simulations of every load, whose figures are averaged: the measurement is one of many possible courses."""


def validate(folder: Path, progress: ProgressCallback) -> LoadOutcome:
    """Simulate the scenarios of a load, and write the comparison with the measurement into its run directory.

    Each is simulated twice, with the server as fast as its profile, and as fast as its batches were during the load:
    the errors of the profile and of the simulator can thus be told apart. In both, the scheduler's estimates are off
    from the profile as far as the server's own were.
    """
    content = _read(folder / "run.json")
    if content.get("command") != "load":
        raise SkitError(f"{folder} is no run of skit load")
    run = _checked(folder / "run.json", report.LoadDescription.read)
    measured_rows = _checked(folder / "summary.json", partial(convert, report.LoadSummary)).rows
    trace = TraceFile(folder / TRACE)
    seed = run.config.seed
    rows: list[report.ValidatedLoad] = []
    for done, measured in enumerate(measured_rows):
        point = LoadPoint(measured.devices, measured.rate)
        progress(str(point), done, len(measured_rows))
        scenario = _scenario(run, point, trace, measured.estimate or 1.0)
        means = []
        for variant in (scenario, _slowed(scenario, measured)):
            drawn = [summary_row(variant, point, simulate(variant, number)) for number in range(seed, seed + SEEDS)]
            means.append(report.mean_of(drawn))
        simulated, as_fast = means
        values = report.values_of(measured)
        rows.append(
            report.ValidatedLoad(
                *point,
                measured,
                simulated,
                report.deviations(values, simulated),
                as_fast,
                report.deviations(values, as_fast),
            )
        )
    progress("done", len(rows), len(rows))
    validation = report.Validation(SEEDS, rows)
    document = report.write_validation(folder, VALIDATION, run, validation)
    write_text(folder / f"{VALIDATION}.json", to_json(validation))
    return LoadOutcome(folder, content, validation, document)


def _scenario(run: report.LoadDescription, point: LoadPoint, trace: TraceFile, estimate: float) -> Scenario:
    """Return the scenario of a load, with the overhead of server and network that its profile measured.

    The scheduler estimates `estimate` times the profile's seconds, as the server's own did.
    """
    wire_s = run.wire_s + _busy_s(run, point.devices)
    deployment = restore(run.deployment)
    # `wire_s` contains the sending of one message each way, which the simulated network adds as `frame_s`.
    link = replace(deployment.link, rtt_s=deployment.link.rtt_s + max(0.0, wire_s - 2 * run.frame_s))
    scenario = make_scenario(run.config, point, trace, replace(deployment, link=link))
    network = Network(frame_s=run.frame_s, turn_s=run.turn_s, turn_answer_s=run.turn_answer_s, answer_s=run.answer_s)
    estimator = EstimatorError(estimate, model=deployment.verifier.latency)
    return replace(scenario, network=network, verify_cv=run.verify_cv, estimator=estimator)


def _busy_s(run: report.LoadDescription, devices: int) -> float:
    """Return by how much round trips are longer than a single device's, between the numbers that were measured."""
    sessions = [sessions for sessions, _ in run.busy_by_sessions]
    return float(np.interp(devices, sessions, [seconds for _, seconds in run.busy_by_sessions]))


def _slowed(scenario: Scenario, measured: report.MeasuredLoad) -> Scenario:
    """Return the scenario with verifications as slow and as uneven as measured, unknown to the scheduler."""
    deployment = scenario.deployment
    latency = ScaledLatency(deployment.verifier.latency, measured.slower or 1.0)
    deployment = replace(deployment, verifier=replace(deployment.verifier, latency=latency))
    return replace(scenario, deployment=deployment, verify_cv=measured.scatter or scenario.verify_cv)


def _checked(path: Path, read: Callable[[JsonObject], T]) -> T:
    """Return what a file of the run holds; SkitError names a field that is missing or of a wrong type."""
    try:
        return read(_read(path))
    except ValueError as error:
        raise SkitError(f"{path}: {error}; name the folder of a run of this kit's skit load") from error


def _read(path: Path) -> JsonObject:
    try:
        content = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SkitError(f"cannot read {path}: {reason}; name the folder of a finished run of skit load") from error
    if not isinstance(content, dict):
        raise SkitError(f"{path} holds no object: name the folder of a run of skit load")
    return content
