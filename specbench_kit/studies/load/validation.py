"""`skit validate`: the simulator beside a load that was measured."""

from dataclasses import dataclass, replace
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import parse
from specbench_kit.decoding.latency import BatchSums, LatencyModel
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.restoring import restore
from specbench_kit.reports.live import report
from specbench_kit.runs.folder import to_json, write_text
from specbench_kit.serving.network import Network
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.load.run import OF_SERVER, TRACE, Fields, LoadOutcome, make_scenario, summary_row
from specbench_kit.traces.trace import TraceFile

VALIDATION = "validation"
SEEDS = 5
"""Of every simulation, whose figures are averaged: what was measured is one course of many that it could take."""


@dataclass(frozen=True, slots=True)
class ScaledLatency(LatencyModel):
    """A model's seconds times a factor."""

    model: LatencyModel
    factor: float

    def of_sums(self, sums: BatchSums) -> float:
        """Seconds of a batch with these sums."""
        return self.factor * self.model.of_sums(sums)


def validate(folder: Path, told: ProgressCallback) -> LoadOutcome:
    """The same scenarios in the simulator, beside what was measured: into the run's folder.

    Once with the server as fast as its profile says, and once as fast as its batches were during the load: the profile
    and the simulator can each be wrong.
    """
    run, summary = _read(folder / "run.json"), _read(folder / "summary.json")
    if run.get("command") != "load":
        raise SkitError(f"{folder} is no run of skit load")
    trace, rows, seed = TraceFile(folder / TRACE), [], run["config"]["seed"]
    for done, measured in enumerate(summary["rows"]):
        devices = measured["devices"]
        told(f"{devices} devices", done, len(summary["rows"]))
        scenario = _scenario(run, devices, trace)
        row = {"devices": devices, "measured": measured}
        for name, scene in (("simulated", scenario), ("as_fast", _as_fast(scenario, measured.get("slower") or 1.0))):
            drawn = [summary_row(scene, devices, simulate(scene, one)) for one in range(seed, seed + SEEDS)]
            row[name] = report.mean_of(drawn)
            row[f"{name}_apart"] = report.deviations(report.values_of(measured), row[name])
        rows.append(row)
    told("done", len(rows), len(rows))
    found = {"seeds": SEEDS, "rows": rows}
    text = report.validation_report(run, found)
    write_text(folder / f"{VALIDATION}.json", to_json(found))
    write_text(folder / f"{VALIDATION}.md", text)
    return LoadOutcome(folder, run, found, text)


def _scenario(run: Fields, devices: int, trace: TraceFile) -> Scenario:
    """What the profile says of the wire is there in the measurement already, beside the link that is shaped."""
    frame_s, wire_s = run.get("frame_s", 0.0), run.get("wire_s", 0.0) + run.get("busy_s", 0.0)
    deployment: Deployment = restore(run["deployment"])
    # A message alone is among what a round takes beside its verification, in either direction.
    link = replace(deployment.link, rtt_s=deployment.link.rtt_s + max(0.0, wire_s - 2 * frame_s))
    scene = make_scenario(run["config"], devices, trace, replace(deployment, link=link))
    network = Network(**{name: run.get(name, 0.0) for name in OF_SERVER})
    return replace(scene, network=network, verify_cv=run.get("verify_cv", 0.0))


def _as_fast(scenario: Scenario, slower: float) -> Scenario:
    """With verifications that take so many times as long, of which the scheduler does not know."""
    deployment = scenario.deployment
    verifier = replace(deployment.verifier, latency=ScaledLatency(deployment.verifier.latency, slower))
    believed = EstimatorError(model=deployment.verifier.latency)
    return replace(scenario, deployment=replace(deployment, verifier=verifier), estimator=believed)


def _read(path: Path) -> Fields:
    try:
        found = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SkitError(f"cannot read {path}: {error}; name the folder of a finished run of skit load") from error
    if not isinstance(found, dict):
        raise SkitError(f"{path} holds no object: name the folder of a run of skit load")
    return found
