"""The gaps between tokens with speculation and without it, at the same load: from which load on
drafting makes the longest of them longer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import convert, structs, to_builtins

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.reports.document import Cell, Column, Table
from specbench_kit.reports.writing.formatting import count, significant
from specbench_kit.serving.figures import (
    AxisValue,
    Interval,
    ResponseLatencies,
    SearchedRow,
    SimulatedRow,
    TriedLoad,
    varied,
)
from specbench_kit.studies.serving.seeds import joined
from specbench_kit.studies.serving.summary import (
    NAMES,
    Latencies,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
    axis_cell,
    latency_groups,
    point_in_words,
)
from specbench_kit.studies.tail_latency import TailPair, tail_verdict

DEVICES = "devices"
MOST_SENTENCES = 6
"""Sentences up to which a page says them all."""


LoadRow = SimulatedRow | SearchedRow
"""A series under one load: `devices` is that load, whatever its unit."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """One class under one load: its latencies in a series that drafts, and in plain decoding."""

    row: LoadRow
    group: str
    drafting: Latencies
    plain: Latencies

    @property
    def tail(self) -> TailPair | None:
        """The 99th percentiles of its gaps; None without gaps."""
        drafting, plain = self.drafting.itl_s, self.plain.itl_s
        if drafting is None or plain is None:
            return None
        return TailPair(_load_in_words(self.row), drafting.p99, plain.p99)


def plain_series(run: ServingDescription) -> str:
    """Return the series that drafts nothing; "" if there is none, or only such."""
    plain = [entry.label for entry in run.series if not entry.typical.longest]
    return plain[0] if plain and len(plain) < len(run.series) else ""


def _load_in_words(row: LoadRow) -> str:
    load = row.devices or 0
    if isinstance(row, SearchedRow) and row.unit != DEVICES:
        return f"{load:g} {row.unit}"
    return f"{count(int(load))} devices"


def _loads(summary: ServingSummary) -> Sequence[LoadRow]:
    """Return a row for every series and load: those of a simulation, or those that the search for a
    capacity tried with every seed. Two searches share the loads by which they are doubled.
    """
    if isinstance(summary, SimulationSummary):
        return summary.rows
    return [row for searched in summary.rows for row in _tried(searched)]


def _tried(searched: SearchedRow) -> Iterator[SearchedRow]:
    by_load: defaultdict[float, list[TriedLoad]] = defaultdict(list)
    for search in searched.seeds:
        for trial in search.trials:
            by_load[trial.load].append(trial)
    for load, trials in sorted(by_load.items()):
        if len(trials) == len(searched.seeds):
            latencies = joined([to_builtins(trial.latencies) for trial in trials])
            yield structs.replace(
                searched,
                devices=load,
                latencies=convert(latencies, dict[str, ResponseLatencies[Interval]]),
            )


def _pairs(run: ServingDescription, rows: Sequence[LoadRow]) -> Iterator[list[_Pair]]:
    """Yield the loads of every series that drafts, class and setting, from few devices to many."""
    plain = plain_series(run)
    by_place = {row.place: row for row in rows if row.series == plain}
    drafting = {entry.label for entry in run.series if entry.typical.longest}
    groups: dict[tuple[AxisValue, ...], list[_Pair]] = {}
    for row in rows:
        other = by_place.get(row.place)
        if row.series not in drafting or other is None:
            continue
        theirs = latency_groups(other)
        for name, own in latency_groups(row).items():
            if own.itl_s is not None and name in theirs and theirs[name].itl_s is not None:
                fixed = tuple(row.at(axis) for axis in NAMES if axis != DEVICES)
                key = (row.series, name, *fixed)
                groups.setdefault(key, []).append(_Pair(row, name, own, theirs[name]))
    yield from groups.values()


def tail_sentences(run: ServingDescription, summary: ServingSummary) -> list[str]:
    """Return from which load on drafting makes the longest gaps between tokens longer, for each
    series, class and setting.
    """
    plain = plain_series(run)
    rows = _loads(summary)
    axes = [axis for axis in varied(rows) if axis != DEVICES] if rows else []
    lines = []
    for pairs in _pairs(run, rows):
        first = pairs[0]
        where = point_in_words(first.row, axes)
        of_class = "" if first.group == "all" else f" of class {slo_in_words(first.group)}"
        subject = (
            f"The P99 of the time between tokens (ITL){of_class}{f' at {where}' if where else ''}"
        )
        tails = [tail for pair in pairs if (tail := pair.tail) is not None]
        lines.append(f"{subject}: {tail_verdict(tails, first.row.series, plain)}.")
    return lines[:MOST_SENTENCES]


def tail_table(run: ServingDescription, summary: ServingSummary) -> Table | None:
    """Return the gaps between tokens of all series side by side, a row for each load and class;
    None without a series that drafts and one that does not.
    """
    rows_at_loads = _loads(summary)
    if not any(True for _ in _pairs(run, rows_at_loads)):
        return None
    axes = [axis for axis in NAMES if axis == DEVICES or axis in varied(rows_at_loads)]
    series = list(dict.fromkeys(row.series for row in rows_at_loads))
    places: dict[tuple[AxisValue, ...], dict[str, LoadRow]] = {}
    for row in rows_at_loads:
        places.setdefault(row.place, {})[row.series] = row
    by_class = any(len(latency_groups(row)) > 1 for row in rows_at_loads)
    cells: list[list[Cell]] = []
    for rows in places.values():
        if len(rows) == 1:
            continue  # a load that one search alone has tried
        one = next(iter(rows.values()))
        for name in latency_groups(one):
            percentiles = [_percentiles(rows.get(label), name) for label in series]
            place = [axis_cell(axis, one.at(axis)) for axis in axes]
            cells.append([*place, *([name] if by_class else []), *percentiles])
    titles = [f"{label}, ITL (ms)\nP50 / P95 / P99" for label in series]
    unit = next((row.unit for row in rows_at_loads if isinstance(row, SearchedRow)), DEVICES)
    columns = [Column(NAMES[axis] if axis != DEVICES else unit, "count") for axis in axes]
    return Table((*columns, *(["class"] if by_class else []), *titles), cells)


def _percentiles(row: LoadRow | None, group: str) -> str | None:
    latencies = latency_groups(row).get(group) if row is not None else None
    if latencies is None or latencies.itl_s is None:
        return None
    parts: Sequence[Interval] = (latencies.itl_s.p50, latencies.itl_s.p95, latencies.itl_s.p99)
    return " / ".join(significant(1e3 * part.mean) for part in parts)
