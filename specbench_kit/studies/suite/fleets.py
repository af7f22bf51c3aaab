"""Devices at one server: a policy's rounds in a simulation of many devices that were promised token speeds."""

from collections.abc import Sequence
from statistics import fmean

from specbench_kit.core.errors import require
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import drafts_on_edge, with_method_times
from specbench_kit.methods.base import Method
from specbench_kit.metrics.suite import FleetResult, rounded
from specbench_kit.serving.acceptance_spec import recorded_source
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import GroupMetrics, compute_metrics
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import DraftingPlace, ServingSystem
from specbench_kit.studies.suite.definition import FleetTable


def fleet_result(
    fleet: FleetTable, method: Method, deployment: Deployment, records: Sequence[RequestRecord], quick: bool
) -> FleetResult:
    """Simulate every load of a fleet whose devices make the rounds of a method's records.

    A quick run takes the first seed alone. Raise SkitError for a method whose rounds a simulation cannot time.
    """
    _require_simulated(method)
    scenarios = {load: _scenario(fleet, load, method, deployment, records) for load in fleet.loads}
    late: list[tuple[float, ...]] = []
    at_devices: list[tuple[GroupMetrics, Sequence[GroupMetrics]]] = []
    for seed in range(1 if quick else fleet.seeds):
        shares = []
        for load, scenario in scenarios.items():
            metrics = compute_metrics(scenario, simulate(scenario, seed))
            shares.append(rounded(metrics["overall"]["violation_rate"] or 0.0))
            if load == fleet.devices:
                at_devices.append((metrics["overall"], list(metrics["classes"].values())))
        late.append(tuple(shares))
    classes = zip(*(groups for _, groups in at_devices), strict=True)
    return FleetResult(
        late=tuple(late),
        late_by_class=tuple(rounded(fmean(group["violation_rate"] or 0.0 for group in groups)) for groups in classes),
        goodput=rounded(fmean(overall["goodput"] for overall, _ in at_devices)),
    )


def _require_simulated(method: Method) -> None:
    overlapping = method.overlaps and getattr(method, "proactive_depth", None) is None
    require(not overlapping, "it drafts while the server verifies, which a simulation of many devices does not model")


def _scenario(
    fleet: FleetTable, devices: int, method: Method, deployment: Deployment, records: Sequence[RequestRecord]
) -> Scenario:
    placed = with_method_times(method, deployment)
    place: DraftingPlace = "none"
    if method.uses_drafter:
        place = "edge" if drafts_on_edge(method, deployment) else "server"
    system = ServingSystem(summary=fleet.words, method=method.display_name, scheduler=fleet.scheduler, drafting=place)
    return Scenario(
        placed,
        system,
        recorded_source(records, method, placed),
        devices,
        slo=parse_slo(fleet.slo),
        # Thinking always takes the same time: a drawn one goes through a logarithm, whose last bit depends on the
        # processor.
        arrivals=ClosedLoop(think_s=fleet.think_s, ramp_s=fleet.ramp_s),
        memory=KvCapacity(fleet.kv_tokens),
        learned=method.learned,
        duration_s=fleet.duration_s,
        warmup_s=fleet.warmup_s,
        require_attainable_slo=False,
    )
