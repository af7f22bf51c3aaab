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
from specbench_kit.metrics.losslessness import KeptVerdicts, OutputVerdict, check_all, count_outputs
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.rows import Reference, TableEntry, choose_reference, rows_of
from specbench_kit.metrics.run_data import BenchmarkRun, placed
from specbench_kit.metrics.run_summary import MethodRow, OutputCounts
from specbench_kit.metrics.series import MethodSeries, arrange
from specbench_kit.metrics.statistics import Units, units_of
from specbench_kit.metrics.verdicts import joint_check

Kind = Literal["overall", "dataset", "category"]
MANY = 10
"""Number of rows up to which tables and figures are not divided into groups of methods."""


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """One table: the metrics of every series over all requests, those of a dataset, or those of a category."""

    kind: Kind
    name: str
    rows: Mapping[str, MethodRow]


@dataclass(frozen=True)
class Comparison:
    """The content of a comparison report; `reference` is the label of the row that others are compared with.

    `overruled` are differences that forbid a comparison unless it is forced; `remarks` and `problems` are lines that a
    reader must know. `groups` holds the requests of every label; the outputs of the `unchecked` labels were not
    checked for losslessness, and of the `undecided` ones too few tokens were drawn to tell. `is_named` says that the
    user named the reference.
    """

    series: Sequence[MethodSeries]
    parts: Sequence[ComparisonTable]
    reference: str
    overruled: Sequence[str] = ()
    remarks: Sequence[str] = ()
    problems: Sequence[str] = ()
    groups: Mapping[str, RequestGroup] = field(default_factory=dict, repr=False)
    unchecked: Sequence[str] = ()
    undecided: Sequence[str] = ()
    is_named: bool = False

    @property
    def overall(self) -> Mapping[str, MethodRow]:
        """The rows over all requests."""
        return self.parts[0].rows

    def from_fast_to_slow(self) -> "Comparison":
        """Return the comparison with the rows of every table in the order of their speed over all requests.

        That is the typical speedup, which is 1 for the baseline, or the throughput where no baseline was decoded.
        """
        rows = self.overall
        paired = any(row.typical_speedup for row in rows.values())
        speeds = {label: row.typical_speedup or 1.0 if paired else row.throughput or 0.0 for label, row in rows.items()}
        labels = sorted(rows, key=lambda label: -speeds[label])
        parts = []
        for part in self.parts:
            ordered = {label: part.rows[label] for label in labels if label in part.rows}
            parts.append(replace(part, rows=ordered))
        series = sorted(self.series, key=lambda series: labels.index(series.label))
        return replace(self, parts=parts, series=series)

    @property
    def by_group(self) -> dict[str, list[str]]:
        """The labels of every group of methods; empty if there are few enough rows for one table."""
        if len(self.series) <= MANY:
            return {}
        labels: dict[str, list[str]] = {group: [] for group in GROUPS}
        for series in self.series:
            labels[series.group].append(series.label)
        return {group: members for group, members in labels.items() if members}

    @property
    def runs(self) -> list[BenchmarkRun]:
        """Every run directory that was read, in the order of the rows."""
        return [run for series in self.series if not series.is_derived for run in series.runs.values()]

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets, in order of first appearance."""
        return list(dict.fromkeys(name for series in self.series for name in series.runs))


@dataclass(frozen=True, slots=True)
class Source:
    """A run's records; their ids are unique over all datasets."""

    run: BenchmarkRun
    records: Sequence[RequestRecord]
    baseline: Sequence[RequestRecord]


Sources = Mapping[str, Source]
"""The sources of one series by dataset."""


def compare(
    runs: Sequence[BenchmarkRun], *, against: str | None = None, force: bool = False, problems: Sequence[str] = ()
) -> Comparison:
    """Return the comparison of runs; SkitError if they differ in what must agree, unless `force`.

    `against` is the method or row that others are compared with, by default the fastest that can be deployed.
    """
    if not runs:
        raise SkitError("there is no run to report on")
    all_series = arrange(runs)
    labelled = [(series.label, run) for series in all_series if not series.is_derived for run in series.runs.values()]
    differing = obstacles(labelled)
    if differing and not force:
        raise SkitError(
            f"these runs cannot be compared, they differ in {'; '.join(differing)}: --force compares anyway"
        )
    sources = {series.label: _sources(series) for series in all_series}
    entries = [_entry(series, sources[series.label]) for series in all_series]
    units = _units(sources.values())
    reference = _reference(against, entries, all_series, units)
    overall, groups = rows_of(entries, reference, units)
    tables = [ComparisonTable("overall", "all requests", overall)]
    tables += _divided_tables(all_series, sources, reference, units)
    undecided = [entry.label for entry in entries if entry.is_undecided and not entry.is_baseline]
    unchecked = [
        entry.label
        for entry in entries
        if entry.may_win is None and not entry.is_baseline and entry.label not in undecided
    ]
    run_problems = [problem for run in runs for problem in run.problems]
    return Comparison(
        all_series,
        tables,
        reference.label,
        differing,
        remarks(labelled),
        [*problems, *run_problems],
        groups,
        unchecked,
        undecided,
        is_named=against is not None,
    )


def _sources(series: MethodSeries) -> dict[str, Source]:
    def unique(records: Sequence[RequestRecord], dataset: str) -> Sequence[RequestRecord]:
        if len(series.runs) == 1:
            return records
        prefixed = []
        for record in records:
            dialogue = f"{dataset}/{record.dialogue}" if record.dialogue else ""
            prefixed.append(structs.replace(record, request_id=f"{dataset}/{record.request_id}", dialogue=dialogue))
        return prefixed

    return {
        name: Source(run, unique(run.records, name), unique(run.baseline, name)) for name, run in series.runs.items()
    }


def _units(all_sources: Iterable[Sources]) -> dict[str, int]:
    """Return one numbering of units for all tables, so that all methods share the units of their common prompts."""
    units: dict[str, int] = {}
    for source in (source for sources in all_sources for source in sources.values()):
        first = 1 + max(units.values(), default=-1)
        # Prompts that an earlier run has too keep their unit. Batches are those of the first run on each dataset:
        # all runs take the prompts in the same order.
        units = units_of(source.records, source.run.fields.decoded_at_once, first) | units
    return units


def _divided_tables(
    all_series: Sequence[MethodSeries], sources: Mapping[str, Sources], reference: Reference, units: Units
) -> list[ComparisonTable]:
    """Return a table per dataset and one per category, each only if there are several."""
    pairs: dict[tuple[str, str], None] = {}
    for by_dataset in sources.values():
        for name, source in by_dataset.items():
            pairs |= dict.fromkeys((name, record.category) for record in source.records)
    datasets, categories = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    divisions: list[tuple[Kind, str]] = [("dataset", name) for name in datasets] if len(datasets) > 1 else []
    divisions += [("category", name) for name in categories] if len(categories) > 1 else []
    tables = []
    for kind, name in divisions:
        parts = {series.label: _part(sources[series.label], kind, name) for series in all_series}
        # A dataset's requests are all of their runs, which therefore have a makespan; a category's are not.
        entries = [
            _entry(series, parts[series.label], timed=kind == "dataset") for series in all_series if parts[series.label]
        ]
        tables.append(ComparisonTable(kind, name, rows_of(entries, reference, units)[0]))
    return tables


def _part(sources: Sources, kind: Kind, name: str) -> dict[str, Source]:
    """Return the sources with only the records of one dataset or category; sources without any are left out."""
    parts = {}
    for dataset, source in sources.items():
        if kind == "dataset":
            records = list(source.records) if name == dataset else []
            baseline = list(source.baseline)
        else:
            records = [record for record in source.records if record.category == name]
            baseline = [record for record in source.baseline if record.category == name]
        if records:
            parts[dataset] = Source(source.run, records, baseline)
    return parts


def _entry(series: MethodSeries, by_dataset: Sources, *, timed: bool = True) -> TableEntry:
    """Return the series' side of a table; `timed` if the requests are all of their runs, which gives a makespan."""
    sources = list(by_dataset.values())
    run = sources[0].run.fields
    timed = timed and not any(source.run.fields.spans_interruption for source in sources)
    baseline = [record for source in sources for record in source.baseline]
    records = [record for source in sources for record in source.records]
    outputs = None
    if baseline and not run.config.temperature:
        kept = KeptVerdicts(_kept_verdicts(by_dataset, has_prefixes=len(series.runs) > 1))
        outputs = OutputCounts(**count_outputs(check_all(records, baseline, kept)), lossy=bool(run.config.lossy))
    allowed, undecided = joint_check([source.run.summary for source in sources], outputs)
    return TableEntry(
        series.label,
        records,
        baseline,
        makespan_s=sum(makespan_s(source.records) for source in sources) if timed else None,
        baseline_makespan_s=sum(makespan_s(source.baseline) for source in sources) if timed and baseline else None,
        cost=_cost(sources) if timed else None,
        deployment=placed(run.deployment, str(run.method)),
        outputs=outputs,
        is_sampled=bool(run.config.temperature),
        is_lossy=bool(run.config.lossy),
        is_bound=series.is_bound,
        reads_answers=series.reads_answers,
        is_baseline=series.is_baseline,
        looks=max(source.run.fields.looks or 1 for source in sources),
        may_win=allowed,
        is_undecided=undecided,
        processes=min(source.run.fields.config.processes for source in sources),
    )


def _cost(sources: Sequence[Source]) -> float | None:
    """Return the dollars of all runs; None unless every run has a deployment with prices."""
    costs = [
        device_cost(deployment, RequestGroup(source.records), makespan_s(source.records))
        if (deployment := source.run.fields.deployment)
        else None
        for source in sources
    ]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def _kept_verdicts(by_dataset: Sources, *, has_prefixes: bool) -> dict[tuple[str, int], OutputVerdict]:
    """Return what the run's own check found of the outputs that differ, by request id and repeat."""
    verdicts = {}
    for name, source in by_dataset.items():
        lossless = source.run.summary.lossless
        for found in lossless.divergences if lossless else ():
            request_id = f"{name}/{found.request_id}" if has_prefixes else found.request_id
            verdicts[request_id, found.repeat] = found.verdict
    return verdicts


def _reference(
    against: str | None, entries: Sequence[TableEntry], all_series: Sequence[MethodSeries], units: Units
) -> Reference:
    if against is None:
        return choose_reference(entries, units)
    named = [series.label for series in all_series if against in (series.label, series.spec)]
    named += [series.label for series in all_series if against == series.name]
    if not named:
        labels = ", ".join(series.label for series in all_series)
        raise SkitError(f"no run of '{against}' to compare with; there are {labels}")
    if any(entry.label == named[0] and entry.may_win is False and not entry.is_baseline for entry in entries):
        raise SkitError(f"--against {against}: its outputs are not lossless, so nothing can be compared with it")
    return Reference(named[0], (named[0],))
