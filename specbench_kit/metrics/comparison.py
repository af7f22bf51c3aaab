"""Runs side by side: one row of metrics per method, overall, per dataset and per category, with paired statistics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import GROUPS
from specbench_kit.metrics.comparability import obstacles, remarks
from specbench_kit.metrics.cost import device_cost, makespan_s
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.metrics.rows import Reference, TableEntry, choose_reference, lossless_counts, rows_of
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.series import MethodSeries, arrange
from specbench_kit.metrics.units import Units, batch_size, units_of
from specbench_kit.metrics.verdicts import may_win
from specbench_kit.runs.resumption import spans_interruption

Kind = Literal["overall", "dataset", "category"]
MANY = 10
"""Rows from which on tables and figures are divided into groups of methods."""


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """One table: the metrics of every series over all requests, those of a dataset, or those of a category."""

    kind: Kind
    name: str
    rows: Mapping[str, Metrics]


@dataclass(frozen=True)
class Comparison:
    """What a report says; `reference` is the label that differences are against.

    `overruled` are differences that forbid a comparison unless it is forced; of `remarks` and `problems` a reader
    must know. `groups` are the finished requests of every label; of the `unchecked` it is not known whether their
    outputs are lossless.
    """

    series: Sequence[MethodSeries]
    parts: Sequence[ComparisonTable]
    reference: str
    overruled: Sequence[str] = ()
    remarks: Sequence[str] = ()
    problems: Sequence[str] = ()
    groups: Mapping[str, RequestGroup] = field(default_factory=dict, repr=False)
    unchecked: Sequence[str] = ()

    @property
    def overall(self) -> Mapping[str, Metrics]:
        """The rows over all requests."""
        return self.parts[0].rows

    @property
    def by_group(self) -> dict[str, list[str]]:
        """The labels of every group of methods, where there are too many rows to take in at once; else nothing."""
        if len(self.series) <= MANY:
            return {}
        found = {group: [one.label for one in self.series if one.group == group] for group in GROUPS}
        return {group: labels for group, labels in found.items() if labels}

    @property
    def runs(self) -> list[BenchmarkRun]:
        """Every run directory that was read, in the order of the rows."""
        return [run for one in self.series if not one.is_derived for run in one.runs.values()]

    @property
    def datasets(self) -> list[str]:
        """Names, in order of first appearance."""
        return list(dict.fromkeys(name for one in self.series for name in one.runs))


def compare(
    runs: Sequence[BenchmarkRun], *, against: str | None = None, force: bool = False, problems: Sequence[str] = ()
) -> Comparison:
    """Put runs side by side; those that differ in what must agree are refused, unless by `force`.

    `against` is the method, or the row, that differences are taken to; by default the fastest that can be deployed.
    """
    if not runs:
        raise SkitError("there is no run to report on")
    series = arrange(runs)
    labelled = [(one.label, run) for one in series if not one.is_derived for run in one.runs.values()]
    differing = obstacles(labelled)
    if differing and not force:
        raise SkitError(
            f"these runs cannot be compared, they differ in {'; '.join(differing)}: --force compares anyway"
        )
    sources = {one.label: _sources(one) for one in series}
    entries = [_entry(one, sources[one.label]) for one in series]
    reference = _reference(against, entries, series)
    units = _units(sources.values())
    overall, groups = rows_of(entries, reference, units)
    parts = [ComparisonTable("overall", "all requests", overall)]
    parts += [_part(division, series, sources, reference, units) for division in _divisions(sources)]
    unchecked = [one.label for one in entries if one.may_win is None and not one.is_baseline]
    seen = [problem for run in runs for problem in run.problems]
    return Comparison(
        series, parts, reference.label, differing, remarks(labelled), [*problems, *seen], groups, unchecked
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A run's records, their ids unique over all datasets."""

    run: BenchmarkRun
    records: Sequence[RequestRecord]
    baseline: Sequence[RequestRecord]


def _sources(series: MethodSeries) -> dict[str, Source]:
    several = len(series.runs) > 1
    return {
        name: Source(run, *(_renamed(side, name) if several else side for side in (run.records, run.baseline)))
        for name, run in series.runs.items()
    }


def _units(sources: Iterable[Mapping[str, Source]]) -> dict[str, int]:
    """One numbering for all tables: batches are of the first run on each dataset, which all take in one order."""
    found: dict[str, int] = {}
    for source in (one for by_dataset in sources for one in by_dataset.values()):
        first = 1 + max(found.values(), default=-1)
        # Prompts that another run has too keep their unit, so that all methods are resampled together.
        found = units_of(source.records, batch_size(source.run.fields), first) | found
    return found


def _renamed(records: Sequence[RequestRecord], dataset: str) -> list[RequestRecord]:
    return [structs.replace(record, request_id=f"{dataset}/{record.request_id}") for record in records]


@dataclass(frozen=True, slots=True)
class Division:
    """Some of the requests: those of one dataset, or of one category."""

    kind: Kind
    name: str

    def holds(self, dataset: str, category: str) -> bool:
        """Whether a request belongs to it."""
        return self.name == (dataset if self.kind == "dataset" else category)


def _divisions(sources: Mapping[str, Mapping[str, Source]]) -> list[Division]:
    """Datasets, then categories, where there are several."""
    pairs = dict.fromkeys(
        (name, record.category) for found in sources.values() for name, one in found.items() for record in one.records
    )
    datasets, categories = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    found = [Division("dataset", name) for name in datasets] if len(datasets) > 1 else []
    return found + ([Division("category", name) for name in categories] if len(categories) > 1 else [])


def _part(
    division: Division,
    series: Sequence[MethodSeries],
    sources: Mapping[str, Mapping[str, Source]],
    reference: Reference,
    units: Units,
) -> ComparisonTable:
    entries = []
    for one in series:
        kept = {name: _kept(name, source, division) for name, source in sources[one.label].items()}
        kept = {name: source for name, source in kept.items() if source.records}
        if kept:
            entries.append(_entry(one, kept, timed=division.kind == "dataset"))
    return ComparisonTable(division.kind, division.name, rows_of(entries, reference, units)[0])


def _kept(dataset: str, source: Source, division: Division) -> Source:
    sides = ([r for r in side if division.holds(dataset, r.category)] for side in (source.records, source.baseline))
    return Source(source.run, *sides)


def _entry(series: MethodSeries, sources: Mapping[str, Source], *, timed: bool = True) -> TableEntry:
    """`timed`: the requests are all of their runs, so that makespan and cost are theirs unless interrupted."""
    found = list(sources.values())
    timed = timed and not any(spans_interruption(one.run.fields) for one in found)
    records, baseline = ([r for one in found for r in side(one)] for side in (_records, _baseline))
    spans = [sum(makespan_s(side(one)) for one in found) for side in (_records, _baseline)]
    entry = TableEntry(
        series.label,
        records,
        baseline,
        makespan_s=spans[0] if timed else None,
        baseline_makespan_s=spans[1] if timed and baseline else None,
        cost=_cost(found) if timed else None,
        deployment=found[0].run.fields.get("deployment"),
        ties=_ties(sources, renamed=len(series.runs) > 1),
        is_sampled=bool((found[0].run.fields.get("config") or {}).get("temperature")),
        is_bound=series.is_bound,
        is_baseline=series.is_baseline,
        may_win=_may_win(found),
    )
    wrong = (lossless_counts(entry) or {}).get("errors")
    return replace(entry, may_win=False) if wrong else entry


def _may_win(sources: Sequence[Source]) -> bool | None:
    """Whether the outputs of all runs were checked and held."""
    known = [may_win(one.run.summary) for one in sources]
    return False if False in known else None if None in known else True


def _records(source: Source) -> Sequence[RequestRecord]:
    return source.records


def _baseline(source: Source) -> Sequence[RequestRecord]:
    return source.baseline


def _cost(sources: Sequence[Source]) -> float | None:
    costs = [
        device_cost(deployment, one.records) for one in sources if (deployment := one.run.fields.get("deployment"))
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(sources) else None


def _ties(sources: Mapping[str, Source], *, renamed: bool) -> frozenset[tuple[str, int]]:
    """Requests, by id and repeat, whose difference from the baseline the run's own check took for rounding."""
    return frozenset(
        (f"{name}/{one['request_id']}" if renamed else one["request_id"], one.get("repeat", 0))
        for name, source in sources.items()
        for one in (source.run.summary.get("lossless") or {}).get("divergences", ())
        if one["verdict"] == "tie"
    )


def _reference(against: str | None, entries: Sequence[TableEntry], series: Sequence[MethodSeries]) -> Reference:
    if against is None:
        return choose_reference(entries)
    named = [one.label for one in series if against in (one.label, one.spec)]
    named += [one.label for one in series if against == one.name]
    if not named:
        raise SkitError(f"no run of '{against}' to compare with; there are {', '.join(one.label for one in series)}")
    if any(one.label == named[0] and one.may_win is False and not one.is_baseline for one in entries):
        raise SkitError(f"--against {against}: its outputs are not lossless, so that nothing can be held against it")
    return Reference(named[0], (named[0],))
