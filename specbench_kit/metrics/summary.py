"""The metrics of `vocabulary.py`, computed from request records.

Every metric is over finished requests: a request that ended in an error counts in `failed` only. A metric that has no
meaning for the records at hand (an acceptance rate with nothing submitted) is None. All times are in seconds.
"""

from collections.abc import Sequence

from specbench_kit.core.errors import require
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics import derived_range, paired
from specbench_kit.metrics.acceptance import acceptance_by_position, counts, pooled, ratio_intervals
from specbench_kit.metrics.colocation import colocation
from specbench_kit.metrics.cost import device_cost, headroom, idle_shares, makespan_s, per_makespan
from specbench_kit.metrics.latency import attainment, latency, phases, wasted_time
from specbench_kit.metrics.paired import Side
from specbench_kit.metrics.rounds import Metrics, RequestGroup, by_category
from specbench_kit.metrics.statistics import Units, ratio_of_sums, units_of
from specbench_kit.runs.document import DeploymentDescription


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
    processes: int = 1,
) -> Metrics:
    """Return every metric as `{"overall": {...}, "categories": {name: {...}}, "baseline": the same or None}`.

    `goodput` needs `slo_tpot_s`; `cost_efficiency` needs the device costs, sums over devices of price times
    time; `headroom` needs the oracle's throughput on the same requests and a baseline. Metrics per makespan are
    given overall only: categories share the run's time. Intervals are 95% intervals over prompts, or over batches of
    `batch_size` requests that shared their time, and over the `processes` that number the repeats.
    """
    clocks = {record.time_kind for record in RequestGroup([*records, *(baseline or [])]).finished}
    require(len(clocks) <= 1, "measured and modelled times cannot share a metric: run method and baseline on one clock")
    group = RequestGroup(records)
    baseline_summary = None
    if baseline is not None:
        baseline_summary = summarise(
            baseline,
            makespan_s=baseline_makespan_s,
            slo_tpot_s=slo_tpot_s,
            device_cost=baseline_device_cost,
            batch_size=batch_size,
        )
        del baseline_summary["baseline"]
    units = units_of(records, batch_size)
    overall = _summarise_group(group, baseline, units, processes)
    overall |= whole_run_metrics(group, makespan_s, device_cost, slo_tpot_s)
    if oracle_throughput is not None and baseline_summary is not None:
        plain_throughput = baseline_summary["overall"]["throughput"]
        overall["headroom"] = headroom(overall["throughput"], plain_throughput, oracle_throughput)
    categories = {name: _summarise_group(part, baseline, units, processes) for name, part in by_category(group).items()}
    return {"overall": overall, "categories": categories, "baseline": baseline_summary}


def summarise_run(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] | None,
    deployment: DeploymentDescription | None,
    oracle_throughput: float | None = None,
    timed: bool = True,
    batch_size: int = 1,
    processes: int = 1,
) -> Metrics:
    """Return every metric of a run from all its records, under the deployment in its `run.json`.

    Set `timed` to False for a run that was interrupted: it has no metrics per makespan.
    """
    plain_records = baseline or ()
    own_s, baseline_s = (makespan_s(side) if timed else None for side in (records, plain_records))
    summary = summarise(
        records,
        baseline,
        makespan_s=own_s,
        baseline_makespan_s=baseline_s,
        oracle_throughput=oracle_throughput,
        device_cost=device_cost(deployment, records) if deployment else None,
        baseline_device_cost=device_cost(deployment, plain_records) if deployment else None,
        batch_size=batch_size,
        processes=processes,
    )
    overall = summary["overall"]
    if deployment:
        overall |= idle_shares(deployment, records, own_s)
    if records:
        colocated = colocation(records, plain_records, units_of(records, batch_size), deployment)
        overall |= colocated | {"intervals": overall["intervals"] | colocated.get("intervals", {})}
    if deployment and summary["baseline"]:
        summary["baseline"]["overall"] |= idle_shares(deployment, plain_records, baseline_s)
    return summary


def _summarise_group(
    group: RequestGroup, baseline: Sequence[RequestRecord] | None, units: Units, processes: int
) -> Metrics:
    metrics = request_metrics(group, units)
    at_ends = derived_range.sides_at_ends(group.records, baseline or ())
    metrics |= derived_range.time_range(group.records, at_ends)
    if baseline is not None:
        metrics |= derived_range.without_ends(derived_range.speedup_range(at_ends, units))
        side = Side.of(group.records, baseline)
        sides = [side, Side(side.baseline, side.baseline)]
        speed = paired.speedup(side, units, paired.process_spread(sides, units, processes))
        metrics |= paired.speedup_metrics(speed) | {"speedup_request_mean": paired.request_mean(side)}
        metrics |= attainment(group, baseline)
        metrics["intervals"] |= paired.speedup_intervals(speed)
    return metrics


def request_metrics(group: RequestGroup, units: Units) -> Metrics:
    """Return every metric of requests that needs neither a baseline nor the time of a whole run, with intervals."""
    rounds = group.rounds
    metrics = counts(group) | pooled(rounds) | acceptance_by_position(rounds)
    metrics |= wasted_time(rounds) | latency(group) | phases(rounds)
    return metrics | {"intervals": ratio_intervals(rounds, units)}


def whole_run_metrics(
    group: RequestGroup, makespan_s: float | None, device_cost: float | None, slo_tpot_s: float | None = None
) -> Metrics:
    """Return the metrics per makespan and, where the devices have prices, tokens per dollar."""
    metrics = per_makespan(group, makespan_s, slo_tpot_s)
    if device_cost is not None:
        metrics["cost_efficiency"] = ratio_of_sums(group.rounds.sum("committed"), device_cost)
    return metrics
