"""The rows of one table: every method's metrics, and how they compare over the same prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics import paired
from specbench_kit.metrics.acceptance import ratio_intervals
from specbench_kit.metrics.colocation import colocation
from specbench_kit.metrics.cost import headroom, per_makespan
from specbench_kit.metrics.paired import PairedSpeed, Side
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.metrics.statistics import ComparisonFamily, ratio_of_sums
from specbench_kit.metrics.summary import request_metrics
from specbench_kit.metrics.units import Units, units_of
from specbench_kit.metrics.verdicts import FASTER, as_allowed, verdict

Records = Sequence[RequestRecord]


@dataclass(frozen=True, eq=False)
class TableEntry:
    """One method's side of a table; `ties` are requests, by id and repeat, that differ by rounding alone.

    Makespans and costs are None where the requests share a run's time with others; `deployment` is run.json's.
    `may_win`: its outputs were found to be lossless, or not to be; None where they were not checked.
    """

    label: str
    records: Records
    baseline: Records = ()
    makespan_s: float | None = None
    baseline_makespan_s: float | None = None
    cost: float | None = None
    deployment: Mapping[str, Any] | None = None
    ties: frozenset[tuple[str, int]] = frozenset()
    is_sampled: bool = False
    is_bound: bool = False
    is_baseline: bool = False
    may_win: bool | None = True


@dataclass(frozen=True, slots=True)
class Reference:
    """The row that differences are against; it was chosen from the `candidates` by the data, or is the only one."""

    label: str
    candidates: tuple[str, ...]


def choose_reference(entries: Sequence[TableEntry]) -> Reference:
    """The fastest that can be deployed and may win; of one method's runs, the first.

    Where nothing was checked, of all that can be deployed.
    """
    methods = [one for one in entries if not one.is_baseline and one.may_win is not False]
    fair = [one for one in methods if not one.is_bound] or methods
    fair = [one for one in fair if one.may_win] or fair
    if not fair:
        first = next((one for one in entries if one.is_baseline), entries[0])
        return Reference(first.label, (first.label,))
    labels = tuple(one.label for one in fair)
    if len({label.partition(" #")[0] for label in labels}) == 1:
        return Reference(labels[0], labels[:1])
    return Reference(max(fair, key=_speeds(fair).__getitem__).label, labels)


def _speeds(entries: Sequence[TableEntry]) -> dict[TableEntry, float]:
    """Against the own baseline, or where one has none, by the throughput."""
    sides = {one: _side(one) for one in entries}
    prompts = {one: units_of(one.records) for one in entries}
    found = {one: paired.speedup(sides[one], prompts[one]) for one in entries}
    if all(found.values()):
        return {one: speed.ratio.value for one, speed in found.items() if speed}
    return {one: ratio_of_sums(_tokens(one.records), one.makespan_s or 0.0) or 0.0 for one in entries}


def _tokens(records: Records) -> int:
    return sum(len(record.output_ids) for record in records)


def rows_of(
    entries: Sequence[TableEntry], reference: Reference, units: Units
) -> tuple[dict[str, Metrics], dict[str, RequestGroup]]:
    """Every entry's metrics by label, and the requests that they are of."""
    groups = {one.label: RequestGroup(one.records) for one in entries}
    rows = {one.label: _alone(one, groups[one.label], units) for one in entries}
    _add_ratios(rows, groups, units)
    _add_comparisons(rows, entries, reference, units)
    _add_headroom(rows, entries)
    _add_fastest(rows, entries)
    return rows, groups


def _alone(entry: TableEntry, group: RequestGroup, units: Units) -> Metrics:
    row = request_metrics(group) | {"intervals": {}, "lossless": lossless_counts(entry)}
    if entry.is_sampled and not entry.is_baseline:
        row["sampling_consistent"] = entry.may_win
    row["throughput_request_mean"] = _mean_rate(group.finished)
    if entry.makespan_s is not None:
        row |= per_makespan(group, entry.makespan_s)
    if entry.cost is not None:
        row["cost_efficiency"] = ratio_of_sums(row["tokens"] or 0, entry.cost)
    if entry.baseline:
        row |= repeats(entry) | _request_means(entry)
    if entry.deployment:
        row |= {"intervals": {}} | colocation(entry.records, entry.baseline, units, entry.deployment)
    return row


def _mean_rate(finished: Records) -> float | None:
    rates = [len(record.output_ids) / record.e2e_s for record in finished if record.e2e_s]
    return float(np.mean(rates)) if rates else None


def _request_means(entry: TableEntry) -> Metrics:
    side = Side.of(entry.records, entry.baseline)
    shared = side.own.keys() & side.baseline.keys()
    own, plain = (_mean_rate([r for r in records if r.key in shared]) for records in (entry.records, entry.baseline))
    return {
        "speedup_request_mean": paired.request_mean(side),
        "speedup_of_mean_rates": ratio_of_sums(own or 0.0, plain) if plain else None,
    }


def lossless_counts(entry: TableEntry) -> Metrics | None:
    """How many outputs equal the baseline's; None for sampled outputs and without a baseline."""
    if not entry.baseline or entry.is_sampled:
        return None
    plain = {(r.request_id, r.repeat): r for r in RequestGroup(entry.baseline).finished}
    pairs = [
        (r, plain[key]) for r in RequestGroup(entry.records).finished if (key := (r.request_id, r.repeat)) in plain
    ]
    pairs = [(own, other) for own, other in pairs if own.prompt_ids == other.prompt_ids and own.has_token_ids]
    different = [own.key for own, other in pairs if own.output_ids != other.output_ids]
    ties = sum(key in entry.ties for key in different)
    return {
        "compared": len(pairs),
        "identical": len(pairs) - len(different),
        "ties": ties,
        "errors": len(different) - ties,
    }


def repeats(entry: TableEntry) -> Metrics:
    """The speedup of each repeat, and how far the repeats' times are apart; nothing where each request ran once."""
    count = 1 + max((record.repeat for record in entry.records), default=0)
    if count < 2:
        return {}
    sides = [[[r for r in side if r.repeat == n] for side in (entry.records, entry.baseline)] for n in range(count)]
    prompts = units_of(entry.records)
    found = [paired.speedup(Side.of(*both), prompts) for both in sides]
    return {
        "repeats": count,
        "speedup_by_repeat": [one.ratio.value if one else None for one in found],
        "repeat_spread": _spread(entry.records, count),
    }


def _spread(records: Records, count: int) -> float | None:
    """(slowest - fastest repeat) / their mean, over the requests that finished in all repeats."""
    seconds = paired.request_seconds(records)
    ids = [one for one in dict.fromkeys(key[0] for key in seconds) if all((one, n) in seconds for n in range(count))]
    totals = np.array([sum(seconds[one, n] for one in ids) for n in range(count)])
    return float(np.ptp(totals) / totals.mean()) if ids else None


def _add_ratios(rows: Mapping[str, Metrics], groups: Mapping[str, RequestGroup], units: Units) -> None:
    for label, row in rows.items():
        row["intervals"] |= ratio_intervals(groups[label].rounds, units)


def _add_comparisons(
    rows: Mapping[str, Metrics], entries: Sequence[TableEntry], reference: Reference, units: Units
) -> None:
    """Speed against the own baseline and against the reference, at one level for all of the table."""
    sides = {one.label: _side(one) for one in entries}
    held = next((one for one in entries if one.label == reference.label), None)
    own = {one.label: paired.speedup(sides[one.label], units) for one in entries if one.baseline}
    level = _family(entries, sides, reference, units).level()
    for one in entries:
        row = rows[one.label]
        if found := own.get(one.label):
            row |= paired.speedup_metrics(found)
            row["intervals"]["speedup"] = found.interval(level)
            row["speedup_verdict"] = as_allowed(_verdict(found, level), one.may_win)
        if held is not None and held is not one:
            _hold_against(row, one, held, sides, units, level)


def _side(entry: TableEntry) -> Side:
    """A baseline is its own: it met the state of the machine that it met."""
    return Side.of(entry.records, entry.records if entry.is_baseline else entry.baseline)


def _hold_against(
    row: Metrics, entry: TableEntry, held: TableEntry, sides: Mapping[str, Side], units: Units, level: float
) -> None:
    own, other = sides[entry.label], sides[held.label]
    if found := paired.relative_speed(own, other, units):
        row |= {"relative_speed": found.ratio.value, "win_share_against": found.win_share, "raw_times": found.raw}
        row["relative_speed_units"] = found.ratio.units
        row["intervals"]["relative_speed"] = found.interval(level)
        allowed, rival = (one.is_baseline or one.may_win for one in (entry, held))
        row["verdict"] = as_allowed(_verdict(found, level), allowed, rival)
    if not entry.is_baseline and (machines := paired.baseline_ratio(own, other, units)):
        row["baseline_ratio"] = machines.ratio.value
        row["intervals"]["baseline_ratio"] = machines.interval(level)
        row["baseline_verdict"] = _verdict(machines, level)


def _verdict(found: PairedSpeed, level: float) -> str:
    return verdict(found.ratio.value, found.interval(level), found.ratio.units)


def _family(
    entries: Sequence[TableEntry], sides: Mapping[str, Side], reference: Reference, units: Units
) -> ComparisonFamily:
    baselines = [sides[one.label].baseline or None for one in entries]
    distinct = [one for one in baselines if one]
    speeds = paired.speed_residuals(
        [(sides[one.label].own, plain) for one, plain in zip(entries, baselines, strict=True)],
        units,
    )
    several = any(one != distinct[0] for one in distinct)
    return ComparisonFamily(
        speeds,
        [place for place, one in enumerate(entries) if one.label in reference.candidates],
        [bool(one.baseline) for one in entries],
        paired.degrees_of_freedom([sides[one.label].own for one in entries], units),
        paired.speed_residuals([(one or {}, None) for one in baselines], units) if several else None,
    )


def _add_headroom(rows: Mapping[str, Metrics], entries: Sequence[TableEntry]) -> None:
    """Shares of the gap below the bound, where the bound is shown to be faster: a gap made of noise has no shares."""
    bounds = [rows[one.label] for one in entries if one.is_bound]
    shown = [row.get("throughput") or 0.0 for row in bounds if row.get("speedup_verdict") == FASTER]
    best = max(shown, default=0.0)
    for one in entries:
        plain = ratio_of_sums(_tokens(one.baseline), one.baseline_makespan_s or 0.0)
        if best and plain:
            rows[one.label]["headroom"] = headroom(rows[one.label].get("throughput"), plain, best)


def _add_fastest(rows: Mapping[str, Metrics], entries: Sequence[TableEntry]) -> None:
    """Of those that can be deployed."""
    sides = {one.label: _side(one) for one in entries if not one.is_baseline and not one.is_bound}
    for label, share in paired.fastest_shares(sides).items():
        rows[label]["fastest_share"] = share
