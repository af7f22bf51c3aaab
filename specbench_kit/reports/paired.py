"""The rows of one table: every method's metrics, and paired statistics over the same prompts.

Prompts are drawn with replacement, each with all its repeats and with every method's side of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.reports import metrics
from specbench_kit.reports.metrics import Array, Group, Metrics, win_share
from specbench_kit.reports.statistics import interval_of_ratio, ratio_of_sums, resampled_sums
from specbench_kit.reports.verdicts import FASTER, verdict

Records = Sequence[RequestRecord]

OWN = metrics.RATIOS
TIMED = {"speedup": ("baseline_s", "own_s"), "relative_speed": ("reference_s", "own_against_s")}


@dataclass(frozen=True)
class Entry:
    """One method's side of a table; `ties` are requests, by id and repeat, that differ by rounding alone.

    Makespans and costs are None where the requests share a run's time with others.
    """

    label: str
    records: Records
    baseline: Records = ()
    makespan_s: float | None = None
    baseline_makespan_s: float | None = None
    cost: float | None = None
    ties: frozenset[tuple[str, int]] = frozenset()
    is_sampled: bool = False
    is_bound: bool = False
    is_baseline: bool = False


def choose_reference(entries: Sequence[Entry]) -> str:
    """The label to hold the others against: the fastest that can be deployed; of one method's runs, the first."""
    fair = [one for one in entries if not one.is_baseline and not one.is_bound]
    fair = fair or [one for one in entries if not one.is_baseline] or list(entries)
    if len({one.label.partition(" #")[0] for one in fair}) == 1:
        return fair[0].label
    speeds = {one.label: ratio_of_sums(*_totals(one)) for one in fair}
    if not all(speeds.values()):
        speeds = {one.label: ratio_of_sums(_tokens(one.records), one.makespan_s or 0.0) for one in fair}
    return max(speeds, key=lambda label: speeds[label] or 0.0)


def _totals(entry: Entry) -> tuple[float, float]:
    _, times = metrics.paired_seconds(entry.records, entry.baseline)
    return float(times[:, 0].sum()), float(times[:, 1].sum())


def _tokens(records: Records) -> int:
    return sum(len(record.output_ids) for record in records)


def rows_of(entries: Sequence[Entry], reference: str, seed: int = 0) -> tuple[dict[str, Metrics], dict[str, Group]]:
    """Every entry's metrics by label, and the requests that they are of."""
    groups = {one.label: Group(one.records) for one in entries}
    rows = {one.label: _alone(one, groups[one.label]) for one in entries}
    held = next((one for one in entries if one.label == reference), None)
    sums = PromptSums()
    for one in entries:
        _add_columns(sums, one, groups[one.label], held)
    for one in entries:
        _compare(rows[one.label], sums, one.label)
    _add_intervals(rows, sums, seed)
    _add_headroom(rows, entries)
    _add_fastest(rows, sums, [one.label for one in entries if not one.is_baseline and not one.is_bound])
    return rows, groups


def _alone(entry: Entry, group: Group) -> Metrics:
    row = metrics.plain(group) | {"intervals": {}, "lossless": lossless_counts(entry)}
    row["throughput_request_mean"] = _mean_rate(group.finished)
    if entry.makespan_s is not None:
        row |= metrics.per_makespan(group, entry.makespan_s)
    if entry.cost is not None:
        row["cost_efficiency"] = ratio_of_sums(row["tokens"] or 0, entry.cost)
    if entry.baseline:
        row |= repeats(entry) | _request_means(entry)
    return row


def _mean_rate(finished: Records) -> float | None:
    rates = [len(record.output_ids) / record.e2e_s for record in finished if record.e2e_s]
    return float(np.mean(rates)) if rates else None


def _request_means(entry: Entry) -> Metrics:
    ids, times = metrics.paired_seconds(entry.records, entry.baseline)
    sides = [metrics.request_seconds(side) for side in (entry.records, entry.baseline)]
    shared = sides[0].keys() & sides[1].keys()
    own, plain = (
        _mean_rate([r for r in side if (r.request_id, r.repeat) in shared]) for side in (entry.records, entry.baseline)
    )
    return {
        "speedup_request_mean": float((times[:, 0] / times[:, 1]).mean()) if len(ids) else None,
        "speedup_of_mean_rates": ratio_of_sums(own or 0.0, plain) if plain else None,
    }


def lossless_counts(entry: Entry) -> Metrics | None:
    """How many outputs equal the baseline's; None for sampled outputs and without a baseline."""
    if not entry.baseline or entry.is_sampled:
        return None
    plain = {(r.request_id, r.repeat): r for r in Group(entry.baseline).finished}
    pairs = [(r, plain[key]) for r in Group(entry.records).finished if (key := (r.request_id, r.repeat)) in plain]
    pairs = [(own, other) for own, other in pairs if own.prompt_ids == other.prompt_ids and own.has_token_ids]
    different = [own.key for own, other in pairs if own.output_ids != other.output_ids]
    ties = sum(key in entry.ties for key in different)
    return {
        "compared": len(pairs),
        "identical": len(pairs) - len(different),
        "ties": ties,
        "errors": len(different) - ties,
    }


def repeats(entry: Entry) -> Metrics:
    """The speedup of each repeat, and how far the repeats' times are apart; nothing where each request ran once."""
    count = 1 + max((record.repeat for record in entry.records), default=0)
    if count < 2:
        return {}
    sides = [[[r for r in side if r.repeat == n] for n in range(count)] for side in (entry.records, entry.baseline)]
    pairs = [metrics.paired_seconds(own, plain)[1] for own, plain in zip(*sides, strict=True)]
    return {
        "repeats": count,
        "speedup_by_repeat": [ratio_of_sums(times[:, 0].sum(), times[:, 1].sum()) for times in pairs],
        "repeat_spread": _spread(entry.records, count),
    }


def _spread(records: Records, count: int) -> float | None:
    """(slowest - fastest repeat) / their mean, over the requests that finished in all repeats."""
    seconds = metrics.request_seconds(records)
    ids = [one for one in dict.fromkeys(key[0] for key in seconds) if all((one, n) in seconds for n in range(count))]
    totals = np.array([sum(seconds[one, n] for one in ids) for n in range(count)])
    return float(np.ptp(totals) / totals.mean()) if ids else None


class PromptSums:
    """Columns of sums per prompt, over all prompts of a table: what one bootstrap resamples together."""

    def __init__(self) -> None:
        self._prompts: dict[str, int] = {}
        self._parts: dict[tuple[str, str], tuple[Array, Array]] = {}

    def add(self, label: str, column: str, ids: Sequence[str], values: Array) -> None:
        """Values of a label's requests."""
        numbers = [self._prompts.setdefault(one, len(self._prompts)) for one in ids]
        self._parts[label, column] = np.array(numbers, dtype=np.int64), values

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._parts

    def __getitem__(self, key: tuple[str, str]) -> Array:
        """Shape (prompts,), 0 where the label has nothing of a prompt."""
        numbers, values = self._parts[key]
        return np.bincount(numbers, weights=values, minlength=len(self._prompts)).astype(np.float64)

    def resampled(self, seed: int) -> dict[tuple[str, str], Array]:
        """Every column's sums over the same bootstrap samples; nothing for fewer than two prompts."""
        if len(self._prompts) < 2:
            return {}
        table = np.column_stack([self[key] for key in self._parts])
        return dict(zip(self._parts, resampled_sums(table, seed=seed).T, strict=True))


def _add_columns(sums: PromptSums, entry: Entry, group: Group, held: Entry | None) -> None:
    ids = [record.request_id for record in group.finished]
    for column in sorted({column for pair in OWN.values() for column in pair}):
        sums.add(entry.label, column, ids, group.rounds.per_request(column))
    against = {"speedup": entry.baseline}
    if held is not None and held is not entry:
        against["relative_speed"] = held.records
    for metric, other in against.items():
        paired, times = metrics.paired_seconds(entry.records, other)
        for place, column in enumerate(TIMED[metric]):
            sums.add(entry.label, column, paired, times[:, place])
    sums.add(entry.label, "all_s", *_own_seconds(entry))


def _own_seconds(entry: Entry) -> tuple[list[str], Array]:
    seconds = metrics.request_seconds(entry.records)
    return [key[0] for key in seconds], np.array(list(seconds.values()), dtype=np.float64)


def _compare(row: Metrics, sums: PromptSums, label: str) -> None:
    for metric, (top, base) in TIMED.items():
        if (label, top) not in sums:
            continue
        times = np.column_stack([sums[label, top], sums[label, base]])
        times = times[times[:, 1] > 0]
        if not len(times):
            continue
        row[metric] = ratio_of_sums(*times.sum(axis=0))
        row[WINS[metric]] = win_share(times)
        row[f"{metric}_prompts"] = len(times)


WINS = {"speedup": "win_share", "relative_speed": "win_share_against"}


def _add_intervals(rows: Mapping[str, Metrics], sums: PromptSums, seed: int) -> None:
    samples = sums.resampled(seed)
    for label, row in rows.items():
        for metric, (top, base) in (OWN | TIMED).items():
            if (label, top) in samples:
                row["intervals"][metric] = interval_of_ratio(samples[label, top], samples[label, base])
        if "speedup" in row:
            row["speedup_verdict"] = verdict(row["intervals"].get("speedup"), row["speedup_prompts"])
        if "relative_speed" in row:
            row["verdict"] = verdict(row["intervals"].get("relative_speed"), row["relative_speed_prompts"])


def _add_headroom(rows: Mapping[str, Metrics], entries: Sequence[Entry]) -> None:
    """Shares of the gap below the bound, where the bound is shown to be faster: a gap made of noise has no shares."""
    bounds = [rows[one.label] for one in entries if one.is_bound]
    shown = [row.get("throughput") or 0.0 for row in bounds if row.get("speedup_verdict") == FASTER]
    best = max(shown, default=0.0)
    for one in entries:
        plain = ratio_of_sums(_tokens(one.baseline), one.baseline_makespan_s or 0.0)
        if best and plain:
            rows[one.label]["headroom"] = metrics.headroom(rows[one.label].get("throughput"), plain, best)


def _add_fastest(rows: Mapping[str, Metrics], sums: PromptSums, labels: Sequence[str]) -> None:
    """Share of prompts on which a method is the fastest of those that can be deployed; a tie is shared."""
    if len(labels) < 2:
        return
    seconds = np.column_stack([sums[label, "all_s"] for label in labels])
    seconds = seconds[(seconds > 0).all(axis=1)]
    if not len(seconds):
        return
    first = seconds == seconds.min(axis=1, keepdims=True)
    for label, share in zip(labels, (first / first.sum(axis=1, keepdims=True)).mean(axis=0), strict=True):
        rows[label]["fastest_share"] = float(share)
