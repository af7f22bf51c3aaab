"""The metrics of `vocabulary.py`, computed from request records.

Every metric is over finished requests: a request that ended in an error counts in `failed` only. A
metric that has no meaning for the records at hand (an acceptance rate with nothing submitted) is
None. All times are in seconds.
"""

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.decoding.records import Records
from specbench_kit.metrics import derived_range, paired
from specbench_kit.metrics.acceptance import acceptance_by_position, counts, pooled, ratio_intervals
from specbench_kit.metrics.colocation import colocation
from specbench_kit.metrics.cost import device_cost, headroom, idle_shares, makespan_s, per_makespan
from specbench_kit.metrics.latency import attainment, latency, phases, wasted_time
from specbench_kit.metrics.paired import PairedSpeed, Side
from specbench_kit.metrics.rounds import NO_REQUESTS, KeptMetrics, Metrics, RequestGroup
from specbench_kit.metrics.simultaneous import TableLimits
from specbench_kit.metrics.statistics import Units, ratio_of_sums, units_of
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
    batch_size: int = 1,
    processes: int = 1,
) -> Metrics:
    """Return every metric as `{"overall": {...}, "categories": {name: {...}}, "baseline": the same
    or None}`.

    `goodput` needs `slo_tpot_s`; `cost_efficiency` needs a `deployment` with prices; `headroom` needs the oracle's
    throughput on the same requests and a baseline. Metrics per makespan are given overall only: categories share the
    run's time. Intervals are 95% intervals over prompts, or over batches of `batch_size` requests that shared their
    time, and over the `processes` that number the repeats.
    """
    clocks = {
        record.time_kind
        for side in (group, baseline)
        if side is not None
        for record in side.finished
    }
    require(
        len(clocks) <= 1,
        "measured and modelled times cannot share a metric: run method and baseline on one clock",
    )
    baseline_summary = None
    if baseline is not None:
        baseline_summary = summarise(
            baseline,
            makespan_s=baseline_makespan_s,
            slo_tpot_s=slo_tpot_s,
            deployment=deployment,
            batch_size=batch_size,
        )
        del baseline_summary["baseline"]
    units = units_of(group.records, batch_size)

    def metrics_of(part: RequestGroup) -> Metrics:
        metrics = own_metrics(part, baseline or NO_REQUESTS, units, deployment)
        if baseline is not None:
            plain = baseline.records
            side = Side.of(part.records, plain)
            sides = [side, Side.of(plain, plain)]
            speed = paired.speedup(side, units, paired.process_spread(sides, units, processes))
            add_speedup(metrics, part.records, plain, speed, units)
        return derived_range.without_ends(metrics)

    overall = metrics_of(group)
    cost = (
        device_cost(deployment, group, makespan_s)
        if deployment and makespan_s is not None
        else None
    )
    overall |= whole_run_metrics(group, makespan_s, cost, deployment, slo_tpot_s)
    if oracle_throughput is not None and baseline_summary is not None:
        plain_throughput = baseline_summary["overall"]["throughput"]
        overall["headroom"] = headroom(overall["throughput"], plain_throughput, oracle_throughput)
    categories = {name: metrics_of(part) for name, part in group.categories.items()}
    return {"overall": overall, "categories": categories, "baseline": baseline_summary}


def summarise_run(
    group: RequestGroup,
    baseline: RequestGroup | None,
    deployment: DeploymentDescription | None,
    oracle_throughput: float | None = None,
    timed: bool = True,
    batch_size: int = 1,
    processes: int = 1,
) -> Metrics:
    """Return every metric of a run from all its records, under the deployment in its `run.json`.

    Set `timed` to False for a run that was interrupted: it has no metrics per makespan.
    """
    own_s, baseline_s = (
        makespan_s(side.records) if timed else None for side in (group, baseline or NO_REQUESTS)
    )
    return summarise(
        group,
        baseline,
        makespan_s=own_s,
        baseline_makespan_s=baseline_s,
        oracle_throughput=oracle_throughput,
        deployment=deployment,
        batch_size=batch_size,
        processes=processes,
    )


def own_metrics(
    group: RequestGroup,
    baseline: RequestGroup,
    units: Units,
    deployment: DeploymentDescription | None,
) -> Metrics:
    """Return every metric of a method's requests, with intervals, that needs neither a paired speed
    nor a makespan.

    A part of a baseline stands for the whole: what plain decoding promises does not depend on the
    category.
    """
    plain = baseline.whole or baseline
    numbers: dict[int, int] = {}
    # The same prompts share a unit in the run's own numbering and in that of a table, whose numbers
    # differ.
    partition = tuple(
        numbers.setdefault(units[record.request_id], len(numbers)) for record in group.records
    )
    for kept in group.kept:
        if (
            kept.baseline.kept is plain.kept
            and kept.units == partition
            and kept.deployment == deployment
        ):
            break
    else:
        kept = KeptMetrics(
            plain, partition, deployment, _computed(group, plain.records, units, deployment)
        )
        group.kept.append(kept)
    # A copy, since whoever asks adds speeds and their intervals.
    return {**kept.metrics, "intervals": dict(kept.metrics["intervals"])}


def _computed(
    group: RequestGroup, baseline: Records, units: Units, deployment: DeploymentDescription | None
) -> Metrics:
    rounds = group.rounds
    metrics = counts(group) | pooled(rounds) | acceptance_by_position(rounds)
    metrics |= wasted_time(rounds) | latency(group) | phases(rounds)
    metrics["throughput_request_mean"] = _mean_rate(group.finished)
    colocated = colocation(group.records, baseline, units, deployment)
    metrics["intervals"] = ratio_intervals(rounds, units) | colocated.pop("intervals", {})
    return metrics | colocated | (_beside(group, baseline) if baseline else {})


def _beside(group: RequestGroup, baseline: Records) -> Metrics:
    """Return what compares the requests with plain decoding of them otherwise than by the ratio of
    their times.
    """
    side = Side.of(group.records, baseline)
    shared = side.own.keys() & side.baseline.keys()
    rate = _mean_rate([record for record in group.records if record.key in shared])
    baseline_rate = _mean_rate([record for record in baseline if record.key in shared])
    means = {
        "speedup_request_mean": paired.request_mean(side),
        "speedup_of_mean_rates": ratio_of_sums(rate or 0.0, baseline_rate)
        if baseline_rate
        else None,
    }
    return means | attainment(group, baseline)


def _mean_rate(finished: Records) -> float | None:
    rates = [len(record.output_ids) / record.e2e_s for record in finished if record.e2e_s]
    return float(np.mean(rates)) if rates else None


def add_speedup(
    metrics: Metrics,
    records: Records,
    baseline: Records,
    speed: PairedSpeed | None,
    units: Units,
    limits: TableLimits | None = None,
) -> None:
    """Add the paired speed over the baseline with its intervals, and what derived times may make of
    it and of times.

    `limits` are those of the table that the speed stands in, if it stands in one.
    """
    at_ends = derived_range.sides_at_ends(records, baseline)
    metrics |= derived_range.time_range(records, at_ends)
    if baseline:
        metrics |= derived_range.speedup_range(speed, at_ends, units) | paired.speedup_metrics(
            speed
        )
        metrics["intervals"] |= paired.speedup_intervals(speed, limits)


def whole_run_metrics(
    group: RequestGroup,
    makespan_s: float | None,
    cost: float | None,
    deployment: DeploymentDescription | None,
    slo_tpot_s: float | None = None,
) -> Metrics:
    """Return the metrics per makespan, tokens per dollar where the devices have prices, and shares
    of idle time.
    """
    metrics = per_makespan(group, makespan_s, slo_tpot_s)
    if cost is not None:
        metrics["cost_efficiency"] = ratio_of_sums(group.rounds.sum("committed"), cost)
    return metrics | (idle_shares(deployment, group, makespan_s) if deployment else {})
