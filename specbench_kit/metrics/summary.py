"""The metrics of `vocabulary.py`, computed from request records.

Every metric is over finished requests: a request that ended in an error counts in `failed` only. A
metric that has no meaning for the records at hand (an acceptance rate with nothing submitted) is
None. All times are in seconds.
"""

from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.metrics.cost import device_cost, headroom
from specbench_kit.metrics.method_metrics import MethodMetrics
from specbench_kit.metrics.rounds import NO_REQUESTS, Metrics, RequestGroup
from specbench_kit.metrics.statistics import units_of
from specbench_kit.runs.deployment import DeploymentDescription


def summarise(
    group: RequestGroup,
    baseline: RequestGroup | None = None,
    *,
    makespan_s: float | None,
    baseline_makespan_s: float | None = None,
    oracle_throughput: float | None = None,
    slo_tpot_s: float | None = None,
    deployment: DeploymentDescription | None = None,
    requests_per_unit: int = 1,
    processes: int = 1,
) -> Metrics:
    """Return every metric as `{"overall": {...}, "categories": {name: {...}}, "baseline": the same
    or None}`.

    `goodput` needs `slo_tpot_s`; `cost_efficiency` needs a `deployment` with prices; `headroom` needs the oracle's
    throughput on the same requests and a baseline. Metrics per makespan are given overall only: categories share the
    run's time. Intervals are 95% intervals over prompts, or over groups of `requests_per_unit` requests that shared
    their time, and over the `processes` that number the repeats.
    """
    plain = baseline or NO_REQUESTS
    clocks = {record.time_kind for side in (group, plain) for record in side.finished}
    require(
        len(clocks) <= 1,
        "measured and modelled times cannot share a metric: run method and baseline on one clock",
    )
    run = RunMetrics(group, plain, deployment, makespan_s, slo_tpot_s, requests_per_unit, processes)
    metrics = run.summary()
    metrics["baseline"] = None
    if baseline is not None:
        decoded_plainly = RunMetrics(
            baseline, NO_REQUESTS, deployment, baseline_makespan_s, slo_tpot_s, requests_per_unit
        )
        metrics["baseline"] = decoded_plainly.summary()
        if oracle_throughput is not None:
            metrics["overall"]["headroom"] = headroom(
                metrics["overall"]["throughput"],
                metrics["baseline"]["overall"]["throughput"],
                oracle_throughput,
            )
    return metrics


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One side of a run, its method or its baseline, and what its metrics depend on."""

    group: RequestGroup
    plain: RequestGroup
    deployment: DeploymentDescription | None
    makespan_s: float | None
    slo_tpot_s: float | None
    requests_per_unit: int
    processes: int = 1

    def summary(self) -> Metrics:
        """Return the metrics of all requests, and those of each category."""
        units = units_of(self.group.records, self.requests_per_unit)
        shared = (self.plain, units, self.deployment)
        whole = MethodMetrics(self.group, *shared, self.makespan_s, self._cost(), self.slo_tpot_s)
        return {
            "overall": whole.with_speedup(self.processes) | whole.of_run(),
            "categories": {
                name: MethodMetrics(part, *shared).with_speedup(self.processes)
                for name, part in self.group.categories.items()
            },
        }

    def _cost(self) -> float | None:
        if self.deployment is None or self.makespan_s is None:
            return None
        return device_cost(self.deployment, self.group, self.makespan_s)


def summarise_run(
    group: RequestGroup,
    baseline: RequestGroup | None,
    deployment: DeploymentDescription | None,
    oracle_throughput: float | None = None,
    timed: bool = True,
    requests_per_unit: int = 1,
    processes: int = 1,
) -> Metrics:
    """Return every metric of a run from all its records, under the deployment in its `run.json`.

    Set `timed` to False for a run that was interrupted: it has no metrics per makespan.
    """
    return summarise(
        group,
        baseline,
        makespan_s=group.makespan_s if timed else None,
        baseline_makespan_s=(baseline or NO_REQUESTS).makespan_s if timed else None,
        oracle_throughput=oracle_throughput,
        deployment=deployment,
        requests_per_unit=requests_per_unit,
        processes=processes,
    )
