"""The rows of one table: every method's metrics, and their comparison over the same prompts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specbench_kit.decoding.records import Records
from specbench_kit.metrics import derived_range, paired
from specbench_kit.metrics.cost import headroom
from specbench_kit.metrics.losslessness import OutputCounts
from specbench_kit.metrics.method_metrics import MethodMetrics
from specbench_kit.metrics.paired import Side
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.run_summary import MethodRow, method_row
from specbench_kit.metrics.simultaneous import TableLimits, TypicalFamily
from specbench_kit.metrics.statistics import LEVEL, Array, Units, ratio_of_sums, units_of
from specbench_kit.metrics.typical import ProcessSpread
from specbench_kit.metrics.verdicts import FASTER, as_allowed, verdict

Rows = Mapping[str, Metrics]


@dataclass(frozen=True, eq=False, kw_only=True)
class TableEntry(MethodMetrics):
    """One method's side of a table, whose entries share their units.

    `outputs` says how many of its outputs equal the baseline's, which sampled ones need not.
    `may_win` is True if the outputs were found to be lossless, False if not, and None if they were not checked.
    The table was looked at `looks` times while it grew, and could have been the last each time. Its repeats are of so
    many `processes`, one after another; 1 if all are of the same process.
    `is_undecided` marks sampled outputs of which too few were drawn to check them, `is_bound` a method that cannot be
    deployed, and `reads_answers` one of these that is an oracle.
    """

    label: str
    baseline_makespan_s: float | None = None
    outputs: OutputCounts | None = None
    is_sampled: bool = False
    is_lossy: bool = False
    is_bound: bool = False
    reads_answers: bool = False
    is_baseline: bool = False
    may_win: bool | None = True
    is_undecided: bool = False
    looks: int = 1
    processes: int = 1

    @cached_property
    def side(self) -> Side:
        """The times of the requests and of their baseline; a baseline is its own."""
        return Side.of(self.records, self.records if self.is_baseline else self.baseline)

    @cached_property
    def sides_at_ends(self) -> list[Side]:
        """The same times at each end of the range of derived times; empty if they have none."""
        return derived_range.sides_at_ends(
            self.records, self.records if self.is_baseline else self.baseline
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """The row that others are compared with; the data chose it from the `candidates`, or it is the
    only candidate.
    """

    label: str
    candidates: tuple[str, ...]


def choose_reference(entries: Sequence[TableEntry]) -> Reference:
    """Return the fastest method on a typical prompt that can be deployed and may win; of one method
    the first run.

    Outputs that were checked without a result may win: they were not shown to be wrong. If no
    outputs were checked, all that can be deployed are candidates.
    """
    methods = [entry for entry in entries if not entry.is_baseline and entry.may_win is not False]
    candidates = [entry for entry in methods if not entry.is_bound] or methods
    candidates = [
        entry for entry in candidates if entry.may_win or entry.is_undecided
    ] or candidates
    if not candidates:
        first = next((entry for entry in entries if entry.is_baseline), entries[0])
        return Reference(first.label, (first.label,))
    labels = tuple(entry.label for entry in candidates)
    if len({label.partition(" #")[0] for label in labels}) == 1:
        return Reference(labels[0], labels[:1])
    speedups = {entry: paired.speedup(entry.side, entry.units) for entry in candidates}
    speeds = {entry: speed.typical.value for entry, speed in speedups.items() if speed}
    if len(speeds) < len(candidates):  # throughputs, as an entry has no baseline
        speeds = {
            entry: ratio_of_sums(_tokens(entry.records), entry.makespan_s or 0.0) or 0.0
            for entry in candidates
        }
    return Reference(max(candidates, key=speeds.__getitem__).label, labels)


def _tokens(records: Records) -> int:
    return sum(len(record.output_ids) for record in records)


def rows_of(entries: Sequence[TableEntry], reference: Reference) -> dict[str, MethodRow]:
    """Return every entry's metrics by label."""
    rows = {entry.label: _metrics_of(entry) for entry in entries}
    _add_comparisons(rows, entries, reference)
    _add_headroom(rows, entries)
    deployable = {
        entry.label: entry.side for entry in entries if not entry.is_baseline and not entry.is_bound
    }
    for label, share in paired.fastest_shares(deployable).items():
        rows[label]["fastest_share"] = share
    return {label: method_row(row) for label, row in rows.items()}


def _metrics_of(entry: TableEntry) -> Metrics:
    """Return the metrics that need no other entry of the table."""
    row = entry.own()
    row |= {"lossless": entry.outputs, "lossy": entry.is_lossy}
    was_checked = (
        entry.may_win is not None or entry.is_undecided
    )  # no check is made of drafts by another vocabulary
    if entry.is_sampled and not entry.is_baseline and was_checked:
        row["sampling_consistent"] = entry.may_win
    if entry.makespan_s is not None:
        row |= entry.of_run()
    if entry.baseline:
        row |= repeats(entry)
    return row


def repeats(entry: TableEntry) -> Metrics:
    """Return the speedup of each repeat, and how far the repeats' times are apart; empty without
    repeats.
    """
    count = 1 + max((record.repeat for record in entry.records), default=0)
    if count < 2:
        return {}
    prompts = units_of(entry.records)
    speedups = []
    for number in range(count):
        records = [record for record in entry.records if record.repeat == number]
        baseline = [record for record in entry.baseline if record.repeat == number]
        speedups.append(paired.speedup(Side.of(records, baseline), prompts))
    # The spread is over the requests that finished in all repeats.
    seconds = paired.request_seconds(entry.records)
    finished = Counter(request_id for request_id, _ in seconds)
    ids = [request_id for request_id, times in finished.items() if times == count]
    totals = np.zeros(count)
    for number in range(count):
        totals[number] = sum(seconds[request_id, number] for request_id in ids)
    return {
        "repeats": count,
        "speedup_by_repeat": [speed.ratio.value if speed else None for speed in speedups],
        "repeat_spread": float(np.ptp(totals) / totals.mean()) if ids else None,
    }


def _add_comparisons(rows: Rows, entries: Sequence[TableEntry], reference: Reference) -> None:
    """Add the speeds relative to the baselines and to the reference, with verdicts that hold
    together.
    """
    units = entries[0].units
    sides = {entry.label: entry.side for entry in entries}
    spread = _process_spread(entries, sides, units)
    limits = _family(entries, sides, reference, units, spread).limits()
    reference_entry = next((entry for entry in entries if entry.label == reference.label), None)
    for entry in entries:
        row = rows[entry.label]
        speed = paired.speedup(sides[entry.label], units, spread) if entry.baseline else None
        entry.add_speedup(row, speed, limits)
        if speed:
            row["speedup_verdict"] = as_allowed(
                speed.verdict(limits), entry.may_win, undecided=entry.is_undecided
            )
        if reference_entry is not None and reference_entry is not entry:
            relative = paired.relative_speed(
                sides[entry.label], sides[reference.label], units, spread
            )
            _add_relative_speed(row, entry, reference_entry, relative, limits)
            machines = paired.baseline_ratio(sides[entry.label], sides[reference.label], units)
            if machines and not entry.is_baseline:
                bounds = machines.ratio.interval(1 - (1 - LEVEL) / len(entries))
                if spread and bounds:
                    bounds = spread.widen(machines.ratio.value, bounds, limits.typical)
                row["baseline_ratio"] = machines.ratio.value
                row["intervals"]["baseline_ratio"] = bounds
                row["baseline_verdict"] = verdict(
                    machines.ratio.value, bounds, machines.ratio.units
                )
            ends = entry.sides_at_ends, reference_entry.sides_at_ends
            row |= derived_range.relative_speed_range(relative, *ends, units)


def _process_spread(
    entries: Sequence[TableEntry], sides: Mapping[str, Side], units: Units
) -> ProcessSpread | None:
    """Return the spread over processes, assumed unless all methods were repeated in equally many of
    them.
    """
    processes = {entry.processes for entry in entries}
    return paired.process_spread(
        [sides[entry.label] for entry in entries],
        units,
        processes.pop() if len(processes) == 1 else 1,
    )


def _add_relative_speed(
    row: Metrics,
    entry: TableEntry,
    reference: TableEntry,
    speed: paired.PairedSpeed | None,
    limits: TableLimits,
) -> None:
    if speed is None:
        return
    row |= {
        "relative_speed": speed.ratio.value,
        "win_share_against": speed.win_share,
        "raw_times": speed.raw,
    }
    row |= {
        "typical_relative_speed": speed.typical.value,
        "relative_speed_units": speed.ratio.units,
    }
    row |= {
        "typical_relative_speed_upper": speed.typical_upper_bound(),
        "typical_relative_speed_error": speed.typical.standard_error,
        "typical_relative_speed_limit": limits.shown,
    }
    if speed.spread is not None:
        row |= {
            "process_error": speed.spread.standard_error,
            "process_half_width": speed.spread.half_width(limits.shown),
            "process_seen": speed.spread.is_seen,
        }
    row["intervals"] |= {
        "relative_speed": speed.interval(limits),
        "typical_relative_speed": speed.typical_interval(limits),
    }
    allowed, rival = (
        competitor.is_baseline or competitor.may_win for competitor in (entry, reference)
    )
    row["verdict"] = as_allowed(speed.verdict(limits), allowed, rival, entry.is_undecided)


def _family(
    entries: Sequence[TableEntry],
    sides: Mapping[str, Side],
    reference: Reference,
    units: Units,
    spread: ProcessSpread | None,
) -> TypicalFamily:
    own = [sides[entry.label] for entry in entries]
    # Without baselines, times are compared as they are, as `relative_speed` does.
    is_paired = all(side.baseline for side in own)
    places = [position for position, entry in enumerate(entries) if entry.label == reference.label]
    return TypicalFamily(
        np.column_stack([_speeds(side, units, spread, is_paired=is_paired) for side in own]),
        _seconds([side.baseline for side in own], units)
        if is_paired
        else np.ones(1 + max(units.values())),
        [position for position, entry in enumerate(entries) if entry.label in reference.candidates],
        [bool(entry.baseline) and is_paired for entry in entries],
        places[0] if places else None,
        [entry.is_baseline for entry in entries] if is_paired else (),
        1 - (1 - LEVEL) / max(entry.looks for entry in entries),
        spread,
    )


def _speeds(side: Side, units: Units, spread: ProcessSpread | None, *, is_paired: bool) -> Array:
    """Return the logarithm of a method's speed on each unit, relative to its baseline's if that
    counts.
    """
    keys = [key for key in side.own if not is_paired or key in side.baseline]
    if is_paired:
        return paired.unit_logs(side.above, side.below, keys, units, spread)
    # Tokens cancel between methods whose answers are equally long.
    return paired.unit_logs([side.own_tokens], [side.own], keys, units, spread)


def _seconds(baselines: Sequence[paired.Seconds], units: Units) -> Array:
    """Return how long the baselines took for each unit: their mean, and 0 for what none of them
    finished.
    """
    logs = np.column_stack([paired.unit_logs([side], [], list(side), units) for side in baselines])
    seconds: Array = np.where(np.isnan(logs), 0.0, np.exp(logs)).sum(axis=1)
    return seconds / len(baselines)


def _add_headroom(rows: Rows, entries: Sequence[TableEntry]) -> None:
    """Add shares of the gap below the oracle if the oracle is shown to be faster: noise has no
    meaningful shares.
    """
    bounds = [rows[entry.label] for entry in entries if entry.reads_answers]
    best = max(
        (row.get("throughput") or 0.0 for row in bounds if row.get("speedup_verdict") == FASTER),
        default=0.0,
    )
    for entry in entries:
        plain = ratio_of_sums(_tokens(entry.baseline), entry.baseline_makespan_s or 0.0)
        if best and plain:
            rows[entry.label]["headroom"] = headroom(
                rows[entry.label].get("throughput"), plain, best
            )
