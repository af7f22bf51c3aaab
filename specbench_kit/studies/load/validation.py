"""`skit validate`: the simulation of a load that was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.deployments.description import restore
from specbench_kit.reports.study import Study, command_of, read
from specbench_kit.serving.network import Network
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.load import report
from specbench_kit.studies.load.kind import LOAD, VALIDATION, ValidationStudy
from specbench_kit.studies.load.run import TRACE, make_scenario, summary_row
from specbench_kit.studies.load.settings import LoadPoint
from specbench_kit.traces.trace import TraceFile

SEEDS = 5
"""Simulations of every load, whose figures are averaged: the measurement is one of many possible
courses.
"""


def validate(folder: Path, progress: ProgressCallback) -> ValidationStudy:
    """Simulate the scenarios of a load, and write the comparison with the measurement into its run
    directory.

    Each is simulated twice, with the server as fast as its profile, and as fast as its batches were
    during the load: the errors of the profile and of the simulator can thus be told apart. In both,
    the scheduler's estimates are off from the profile as far as the server's own were.
    """
    if command_of(folder) != LOAD.command:
        raise SkitError(f"{folder} is no run of skit load: name the folder of one")
    load = read(LOAD, folder)
    run = load.run
    measured_rows = load.result.rows
    trace = TraceFile(folder / TRACE)
    seed = run.config.seed
    rows: list[report.ValidatedLoad] = []
    for done, measured in enumerate(measured_rows):
        point = LoadPoint(measured.devices, measured.rate)
        progress(str(point), done, len(measured_rows))
        scenario = _scenario(run, point, trace, measured.estimate or 1.0)
        means = []
        for variant in (scenario, _slowed(scenario, measured)):
            drawn = [
                summary_row(variant, point, simulate(variant, number))
                for number in range(seed, seed + SEEDS)
            ]
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
    study = Study(VALIDATION, folder, run, report.Validation(SEEDS, rows))
    study.save()
    return study


def _scenario(
    run: report.LoadDescription, point: LoadPoint, trace: TraceFile, estimate: float
) -> Scenario:
    """Return the scenario of a load, with the overhead of server and network that its profile
    measured.

    The scheduler estimates `estimate` times the profile's seconds, as the server's own did.
    """
    wire_s = run.wire_s + _busy_s(run, point.devices)
    deployment = restore(run.deployment)
    # `wire_s` contains the sending of one message each way, which the simulated network adds as
    # `frame_s`.
    link = replace(
        deployment.link, rtt_s=deployment.link.rtt_s + max(0.0, wire_s - 2 * run.frame_s)
    )
    scenario = make_scenario(run.config, point, trace, replace(deployment, link=link))
    network = Network(
        frame_s=run.frame_s,
        turn_s=run.turn_s,
        turn_answer_s=run.turn_answer_s,
        answer_s=run.answer_s,
    )
    estimator = EstimatorError(estimate, model=deployment.verifier.latency)
    return replace(scenario, network=network, verify_cv=run.verify_cv, estimator=estimator)


def _busy_s(run: report.LoadDescription, devices: int) -> float:
    """Return by how much round trips are longer than a single device's, between the numbers that
    were measured.
    """
    sessions = [sessions for sessions, _ in run.busy_by_sessions]
    return float(np.interp(devices, sessions, [seconds for _, seconds in run.busy_by_sessions]))


def _slowed(scenario: Scenario, measured: report.MeasuredLoad) -> Scenario:
    """Return the scenario with verifications as slow and as uneven as measured, unknown to the
    scheduler.
    """
    deployment = scenario.deployment
    latency = ScaledLatency(deployment.verifier.latency, measured.slower or 1.0)
    deployment = replace(deployment, verifier=replace(deployment.verifier, latency=latency))
    return replace(
        scenario, deployment=deployment, verify_cv=measured.scatter or scenario.verify_cv
    )
