"""The metric vocabulary, computed from request records.

Every metric is over finished requests: one that ended in an error counts in `failed` and nowhere else. A metric
without a meaning for the records at hand (an acceptance rate with nothing submitted) is None. All times are in
seconds.
"""

from collections.abc import Sequence
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics import paired
from specbench_kit.metrics.acceptance import acceptance_by_position, counts, pooled, ratio_intervals
from specbench_kit.metrics.attainment import attainment
from specbench_kit.metrics.colocation import colocation
from specbench_kit.metrics.cost import device_cost, headroom, idle_shares, makespan_s, per_makespan
from specbench_kit.metrics.latency import latency, phases, wasted_time
from specbench_kit.metrics.paired import Side
from specbench_kit.metrics.rounds import Metrics, RequestGroup, by_category
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.metrics.units import Units, units_of


def summarise(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] | None = None,
    *,
    makespan_s: float | None,
    baseline_makespan_s: float | None = None,
    oracle_throughput: float | None = None,
    slo_tpot_s: float | None = None,
    device_cost: float | None = None,
    baseline_device_cost: float | None = None,
    batch_size: int = 1,
) -> dict[str, Any]:
    """Every metric, as `{"overall": {...}, "categories": {name: {...}}, "baseline": same shape or None}`.

    `goodput` needs `slo_tpot_s`; `cost_efficiency` needs the device costs, sums over devices of price times
    time; `headroom` needs the oracle's throughput on the same requests and a baseline. Metrics per makespan are
    given overall only: categories share the run's time. Intervals are 95% intervals over prompts, or over batches of
    `batch_size` requests that shared their time.
    """
    group = RequestGroup(records)
    _require_one_clock([*records, *(baseline or [])])
    reference = None
    if baseline is not None:
        reference = summarise(
            baseline,
            makespan_s=baseline_makespan_s,
            slo_tpot_s=slo_tpot_s,
            device_cost=baseline_device_cost,
            batch_size=batch_size,
        )
        del reference["baseline"]
    units = units_of(records, batch_size)
    overall = _summarise_group(group, baseline, units)
    overall |= per_makespan(group, makespan_s, slo_tpot_s)
    overall |= _optional(overall["throughput"], overall["tokens"], reference, oracle_throughput, device_cost)
    categories = {name: _summarise_group(part, baseline, units) for name, part in by_category(group).items()}
    return {"overall": overall, "categories": categories, "baseline": reference}


def summarise_run(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] | None,
    deployment: Metrics | None,
    oracle_throughput: float | None = None,
    timed: bool = True,
    batch_size: int = 1,
) -> dict[str, Any]:
    """Every metric of a run whose records hold all that it did, under the deployment in its `run.json`.

    Not `timed`: an interruption lies within, so that nothing can be said per makespan.
    """
    other = baseline or ()
    found = summarise(
        records,
        baseline,
        makespan_s=makespan_s(records) if timed else None,
        baseline_makespan_s=makespan_s(other) if timed else None,
        oracle_throughput=oracle_throughput,
        device_cost=device_cost(deployment, records) if deployment else None,
        baseline_device_cost=device_cost(deployment, other) if deployment else None,
        batch_size=batch_size,
    )
    if deployment:
        found["overall"] |= idle_shares(deployment, records)
        _add(found["overall"], colocation(records, other, units_of(records, batch_size), deployment))
    if deployment and found["baseline"]:
        found["baseline"]["overall"] |= idle_shares(deployment, other)
    return found


def _add(metrics: Metrics, more: Metrics) -> None:
    """More metrics, with intervals of their own."""
    metrics |= more | {"intervals": metrics["intervals"] | more.get("intervals", {})}


def _require_one_clock(records: Sequence[RequestRecord]) -> None:
    if len({r.time_kind for r in RequestGroup(records).finished}) > 1:
        raise SkitError("measured and modelled times cannot share a metric: run method and baseline on one clock")


def _summarise_group(group: RequestGroup, baseline: Sequence[RequestRecord] | None, units: Units) -> Metrics:
    metrics = request_metrics(group) | {"intervals": ratio_intervals(group.rounds, units)}
    if baseline is not None:
        side = Side.of(group.records, baseline)
        found = paired.speedup(side, units)
        metrics |= paired.speedup_metrics(found) | {"speedup_request_mean": paired.request_mean(side)}
        metrics |= attainment(group, baseline)
        metrics["intervals"]["speedup"] = found.interval() if found else None
    return metrics


def request_metrics(group: RequestGroup) -> Metrics:
    """Every metric of requests that needs neither a baseline, nor a makespan, nor an interval."""
    rounds = group.rounds
    found = counts(group) | pooled(rounds) | acceptance_by_position(rounds)
    return found | wasted_time(rounds) | latency(group) | phases(rounds)


def _optional(
    throughput: float | None,
    tokens: int,
    reference: dict[str, Any] | None,
    oracle_throughput: float | None,
    device_cost: float | None,
) -> Metrics:
    metrics: Metrics = {}
    if oracle_throughput is not None and reference is not None:
        metrics["headroom"] = headroom(throughput, reference["overall"]["throughput"], oracle_throughput)
    if device_cost is not None:
        metrics["cost_efficiency"] = ratio_of_sums(tokens, device_cost)
    return metrics
