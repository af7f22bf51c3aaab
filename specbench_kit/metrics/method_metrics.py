"""A method's requests beside plain decoding, and their metrics that no other method changes.

Each metric is computed once: the summary of a run, its page and the table of many runs ask here.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specbench_kit.decoding.records import Records
from specbench_kit.metrics import derived_range, paired
from specbench_kit.metrics.acceptance import (
    acceptance_by_position,
    counts,
    outcomes,
    pooled,
    ratio_intervals,
)
from specbench_kit.metrics.added_values import values_and_intervals
from specbench_kit.metrics.colocation import colocation
from specbench_kit.metrics.cost import idle_shares, per_makespan
from specbench_kit.metrics.latency import attainment, latency, phases, wasted_time
from specbench_kit.metrics.paired import PairedSpeed, Side
from specbench_kit.metrics.rounds import (
    BesideBaseline,
    KeptMetrics,
    KeptRunMetrics,
    Metrics,
    RequestGroup,
)
from specbench_kit.metrics.simultaneous import TableLimits
from specbench_kit.metrics.statistics import Units, ratio_of_sums
from specbench_kit.runs.deployment import DeploymentDescription


@dataclass(frozen=True, eq=False)
class MethodMetrics(BesideBaseline):
    """The requests of a method, and the same requests decoded plainly, if they were.

    `units` numbers the independent prompts. `deployment` is that of `run.json`, with the draft model where the method
    has it. `makespan_s` is None if the requests share a run's time with others, and `cost`, in dollars, if it is not
    known.
    """

    group: RequestGroup
    plain: RequestGroup
    units: Units
    deployment: DeploymentDescription | None = None
    makespan_s: float | None = None
    cost: float | None = None
    slo_tpot_s: float | None = None

    @cached_property
    def side(self) -> Side:
        """The times of the requests and of plain decoding."""
        return Side.of(self.records, self.baseline)

    @cached_property
    def sides_at_ends(self) -> list[Side]:
        """The same times at each end of the range of derived times; empty if they have none."""
        return derived_range.sides_at_ends(self.records, self.baseline)

    def own(self) -> Metrics:
        """Return every metric, with intervals, that needs neither a paired speed nor a makespan.

        A part of a baseline stands for the whole: what plain decoding promises does not depend on
        the category.
        """
        numbers: dict[int, int] = {}
        # The same prompts share a unit in the run's own numbering and in that of a table, whose
        # numbers differ.
        partition = tuple(
            numbers.setdefault(self.units[record.request_id], len(numbers))
            for record in self.records
        )
        plain = self.plain.whole or self.plain
        known = (
            kept
            for kept in self.group.kept.own
            if kept.baseline.kept is plain.kept
            and kept.units == partition
            and kept.deployment == self.deployment
        )
        kept = next(known, None)
        if kept is None:
            metrics = self._computed(plain.records)
            kept = KeptMetrics(plain, partition, self.deployment, metrics)
            self.group.kept.own.append(kept)
        # A copy, since whoever asks adds speeds and their intervals.
        return {**kept.metrics, "intervals": dict(kept.metrics["intervals"])}

    def _computed(self, baseline: Records) -> Metrics:
        group, rounds = self.group, self.group.rounds
        metrics = counts(group) | outcomes(group) | pooled(rounds) | acceptance_by_position(rounds)
        metrics |= wasted_time(rounds) | latency(group) | phases(rounds)
        metrics["throughput_request_mean"] = _mean_rate(group.finished)
        colocated = colocation(group.records, baseline, self.units, self.deployment)
        metrics["intervals"] = ratio_intervals(rounds, self.units) | colocated.pop("intervals", {})
        added, intervals = values_and_intervals(group.finished, self.units)
        if added:
            metrics["added"] = added
            metrics["intervals"] |= intervals
        return metrics | colocated | (_beside(group, baseline) if baseline else {})

    def of_run(self) -> Metrics:
        """Return the metrics per makespan, tokens per dollar where the devices have prices, and
        shares of idle time.
        """
        conditions = (self.makespan_s, self.cost, self.slo_tpot_s, self.deployment)
        for kept in self.group.kept.of_runs:
            if (kept.makespan_s, kept.cost, kept.slo_tpot_s, kept.deployment) == conditions:
                return kept.metrics
        metrics = per_makespan(self.group, self.makespan_s, self.slo_tpot_s)
        if self.cost is not None:
            tokens = self.group.rounds.sum("joined")
            metrics["cost_efficiency"] = ratio_of_sums(tokens, self.cost)
        if self.deployment:
            metrics |= idle_shares(self.deployment, self.group, self.makespan_s)
        self.group.kept.of_runs.append(KeptRunMetrics(*conditions, metrics))
        return metrics

    def with_speedup(self, processes: int) -> Metrics:
        """Return the requests' own metrics with their speed over plain decoding, if they were
        decoded plainly: by themselves, without a table. `processes` number the repeats.
        """
        metrics = self.own()
        speed = None
        if self.baseline:
            plain = Side.of(self.baseline, self.baseline)
            spread = paired.process_spread([self.side, plain], self.units, processes)
            speed = paired.speedup(self.side, self.units, spread)
        self.add_speedup(metrics, speed)
        return derived_range.without_ends(metrics)

    def add_speedup(
        self, metrics: Metrics, speed: PairedSpeed | None, limits: TableLimits | None = None
    ) -> None:
        """Add the paired speed over the baseline with its intervals, and what derived times may
        make of it and of times.

        `limits` are those of the table that the speed stands in, if it stands in one.
        """
        metrics |= derived_range.time_range(self.records, self.sides_at_ends)
        if self.baseline:
            metrics |= derived_range.speedup_range(speed, self.sides_at_ends, self.units)
            metrics |= paired.speedup_metrics(speed)
            metrics["intervals"] |= paired.speedup_intervals(speed, limits)


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
