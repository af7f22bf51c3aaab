"""Runs side by side: one row of metrics per method, overall, per dataset and per category, with
paired statistics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.acceptance import by_drafter
from specbench_kit.metrics.comparability import (
    DATASET,
    Difference,
    dataset_name,
    obstacles,
    refusal,
    remarks,
)
from specbench_kit.metrics.cost import device_cost
from specbench_kit.metrics.latency import inter_token_gaps
from specbench_kit.metrics.losslessness import (
    KeptVerdicts,
    OutputVerdict,
    check_all,
    count_outputs,
)
from specbench_kit.metrics.result import (
    AcceptedByLength,
    Comparison,
    ComparisonTable,
    Curves,
    ExampleOutput,
    FailedRequest,
    Kind,
    MethodSeries,
    RunResult,
)
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup, together
from specbench_kit.metrics.rows import Reference, TableEntry, choose_reference, rows_of
from specbench_kit.metrics.run_data import BenchmarkRun, placed
from specbench_kit.metrics.series import RunSeries, arrange
from specbench_kit.metrics.statistics import Units, units_of
from specbench_kit.metrics.verdicts import joint_check

LEAST_SHARE = 0.01
"""Share of a method's rounds from which a draft length is shown."""
QUANTILES = 201
"""Points of a curve of inter-token latencies."""

Decode = Callable[[list[int]], str]
"""Turns token ids into text."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run's requests, whose ids are unique over all datasets."""

    run: BenchmarkRun
    group: RequestGroup
    plain: RequestGroup


@dataclass(frozen=True)
class Sources:
    """The sources of one series by dataset, and the requests of all of them."""

    by_dataset: Mapping[str, Source]

    @cached_property
    def group(self) -> RequestGroup:
        """The method's requests."""
        return together([source.group for source in self.by_dataset.values()])

    @cached_property
    def plain(self) -> RequestGroup:
        """The same requests decoded plainly."""
        return together([source.plain for source in self.by_dataset.values()])


def compare(
    runs: Sequence[BenchmarkRun],
    *,
    against: str | None = None,
    force: bool = False,
    problems: Sequence[str] = (),
    decode: Decode | None = None,
) -> Comparison:
    """Return the comparison of runs; SkitError if they differ in what must agree, unless `force`.

    `against` is the method or row that others are compared with, by default the fastest that can be deployed. The
    result of a single run has an example, of whose prompt `decode` gives the text.
    """
    if not runs:
        raise SkitError("there is no run to report on")
    all_series = arrange(runs)
    labelled = _labelled(all_series)
    differing = obstacles(labelled)
    if differing and not force:
        raise SkitError(refusal(differing))
    sources = {series.label: _sources(series) for series in all_series}
    units = _units(sources.values())
    entries = [_entry(series, sources[series.label], units) for series in all_series]
    reference = _reference(against, entries, all_series)
    overall = rows_of(entries, reference)
    tables = [ComparisonTable("overall", "all requests", overall)]
    tables += _divided_tables(all_series, sources, reference, units)
    undecided = [entry.label for entry in entries if entry.is_undecided and not entry.is_baseline]
    unchecked = [
        entry.label
        for entry in entries
        if entry.may_win is None and not entry.is_baseline and entry.label not in undecided
    ]
    run_problems = [problem for run in runs for problem in run.problems]
    own = [run for series in all_series if not series.is_derived for run in series.runs.values()]
    return Comparison(
        series=[_without_requests(series, decode, is_alone=len(own) == 1) for series in all_series],
        parts=tables,
        reference=reference.label,
        overruled=[difference.line for difference in differing],
        remarks=remarks(labelled),
        problems=[*problems, *run_problems],
        curves={entry.label: _curves(entry.group) for entry in entries},
        unchecked=unchecked,
        undecided=undecided,
        is_named=against is not None,
        folders=[str(run.path) for run in own],
    )


def differences(runs: Sequence[BenchmarkRun]) -> list[Difference]:
    """Return every difference that forbids a comparison of the runs."""
    return obstacles(_labelled(arrange(runs)))


def comparable_groups(runs: Sequence[BenchmarkRun]) -> list[list[BenchmarkRun]]:
    """Divide runs into groups that can be compared, in the order of their first runs."""
    groups: list[list[BenchmarkRun]] = []
    for run in runs:
        # Runs on other datasets agree in all else; whether each method ran on each of them is asked
        # at the end.
        fitting = (
            group
            for group in groups
            if all(found.name == DATASET for found in differences([*group, run]))
        )
        group = next(fitting, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    divided: list[list[BenchmarkRun]] = []
    for group in groups:
        by_dataset: dict[str, list[BenchmarkRun]] = {}
        for run in group if differences(group) else ():
            by_dataset.setdefault(dataset_name(run), []).append(run)
        divided += by_dataset.values() or [group]
    return divided


def _labelled(all_series: Sequence[RunSeries]) -> list[tuple[str, BenchmarkRun]]:
    return [
        (series.label, run)
        for series in all_series
        if not series.is_derived
        for run in series.runs.values()
    ]


def _without_requests(
    series: RunSeries, decode: Decode | None, *, is_alone: bool
) -> MethodSeries[RunResult]:
    """Return a series as the result holds it; only the report on a run that `is_alone` shows single
    requests.
    """
    runs = {}
    for dataset, run in series.runs.items():
        result = RunResult(
            name=run.name,
            fields=structs.replace(run.fields, prompts=None),
            summary=run.summary,
            problems=list(run.problems),
        )
        runs[dataset] = with_requests(result, run.records, decode) if is_alone else result
    return MethodSeries(series.label, runs, series.is_baseline, series.is_bound, series.is_derived)


def with_requests(
    result: RunResult, records: Sequence[RequestRecord], decode: Decode | None = None
) -> RunResult:
    """Return a run's result with what its own report says of single requests."""
    failed = [record for record in records if record.finish_reason == "error"]
    return structs.replace(
        result,
        drafters=by_drafter(records),
        failures=[
            FailedRequest(record.request_id, record.error or "no message") for record in failed
        ],
        example=_example(records, decode),
    )


def _example(records: Sequence[RequestRecord], decode: Decode | None) -> ExampleOutput | None:
    record = next((record for record in records if record.finish_reason != "error"), None)
    if record is None:
        return None
    prompt = None if decode is None else decode(record.prompt_ids).split("\n")
    tokens = len(record.output_ids)
    return ExampleOutput(
        record.request_id, prompt, record.text.split("\n"), tokens, str(record.finish_reason)
    )


def _curves(group: RequestGroup) -> Curves:
    rounds = group.rounds
    # A pipeline's rounds are steps, which have no length.
    chosen = (rounds["steps"] == 0) & np.isfinite(rounds["submitted"]) & (rounds["submitted"] > 0)
    sent = rounds["submitted"][chosen].astype(np.int64)
    number = np.bincount(sent)
    lengths = np.flatnonzero(number >= max(1.0, LEAST_SHARE * number.sum()))
    accepted = np.bincount(sent, weights=rounds["accepted"][chosen])[lengths] / number[lengths]
    by_length = AcceptedByLength(
        lengths.astype(np.float64).tolist(),
        accepted.tolist(),
        number[lengths].astype(np.float64).tolist(),
    )
    gaps_s = inter_token_gaps(rounds)
    gaps_s = gaps_s[gaps_s > 0]
    quantiles = (
        np.quantile(gaps_s, np.linspace(0, 1, QUANTILES)) * 1e3 if len(gaps_s) else np.zeros(0)
    )
    return Curves(by_length, quantiles.tolist())


def _sources(series: RunSeries) -> Sources:
    def unique(group: RequestGroup, dataset: str) -> RequestGroup:
        return group if len(series.runs) == 1 else group.named_after(dataset)

    return Sources(
        {
            name: Source(run, unique(run.group, name), unique(run.plain, name))
            for name, run in series.runs.items()
        }
    )


def _units(all_sources: Iterable[Sources]) -> dict[str, int]:
    """Return one numbering of units for all tables, so that all methods share the units of their
    common prompts.
    """
    units: dict[str, int] = {}
    for source in (source for sources in all_sources for source in sources.by_dataset.values()):
        first = 1 + max(units.values(), default=-1)
        # Prompts that an earlier run has too keep their unit. Batches are those of the first run on
        # each dataset: all runs take the prompts in the same order.
        units = units_of(source.group.records, source.run.fields.requests_per_unit, first) | units
    return units


def _divided_tables(
    all_series: Sequence[RunSeries],
    sources: Mapping[str, Sources],
    reference: Reference,
    units: Units,
) -> list[ComparisonTable]:
    """Return a table per dataset and one per category, each only if there are several."""
    pairs: dict[tuple[str, str], None] = {}
    for series_sources in sources.values():
        for name, source in series_sources.by_dataset.items():
            pairs |= dict.fromkeys((name, category) for category in source.group.categories)
    datasets, categories = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    divisions: list[tuple[Kind, str]] = (
        [("dataset", name) for name in datasets] if len(datasets) > 1 else []
    )
    divisions += [("category", name) for name in categories] if len(categories) > 1 else []
    tables = []
    for kind, name in divisions:
        parts = {series.label: _part(sources[series.label], kind, name) for series in all_series}
        # A dataset's requests are all of their runs, which therefore have a makespan; a category's
        # are not.
        entries = [
            _entry(series, part, units, timed=kind == "dataset")
            for series in all_series
            if (part := parts[series.label])
        ]
        tables.append(ComparisonTable(kind, name, rows_of(entries, reference)))
    return tables


def _part(sources: Sources, kind: Kind, name: str) -> Sources | None:
    """Return the sources with only the requests of one dataset or category; None without any."""
    if kind == "dataset":
        parts = {
            dataset: source for dataset, source in sources.by_dataset.items() if dataset == name
        }
    else:
        parts = {
            dataset: Source(source.run, group, source.plain.categories.get(name, NO_REQUESTS))
            for dataset, source in sources.by_dataset.items()
            if (group := source.group.categories.get(name))
        }
    return Sources(parts) if parts else None


def _entry(series: RunSeries, part: Sources, units: Units, *, timed: bool = True) -> TableEntry:
    """Return the series' side of a table; `timed` if the requests are all of their runs, which
    gives a makespan.
    """
    sources = list(part.by_dataset.values())
    run = sources[0].run.fields
    timed = timed and not any(source.run.fields.spans_interruption for source in sources)
    has_baseline = bool(part.plain.records)
    outputs = None
    if has_baseline and not run.config.temperature:
        kept = KeptVerdicts(_kept_verdicts(part.by_dataset, has_prefixes=len(series.runs) > 1))
        checks = check_all(part.group.records, part.plain.records, kept)
        outputs = count_outputs(checks, lossy=bool(run.config.lossy))
    allowed, undecided = joint_check([source.run.summary for source in sources], outputs)
    return TableEntry(
        part.group,
        part.plain,
        units,
        label=series.label,
        makespan_s=sum(source.group.makespan_s for source in sources) if timed else None,
        baseline_makespan_s=(
            sum(source.plain.makespan_s for source in sources) if timed and has_baseline else None
        ),
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
        device_cost(deployment, source.group, source.group.makespan_s)
        if (deployment := source.run.fields.deployment)
        else None
        for source in sources
    ]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def _kept_verdicts(
    by_dataset: Mapping[str, Source], *, has_prefixes: bool
) -> dict[tuple[str, int], OutputVerdict]:
    """Return what the run's own check found of the outputs that differ, by request id and
    repeat.
    """
    verdicts = {}
    for name, source in by_dataset.items():
        lossless = source.run.summary.lossless
        for found in lossless.divergences if lossless else ():
            request_id = f"{name}/{found.request_id}" if has_prefixes else found.request_id
            verdicts[request_id, found.repeat] = found.verdict
    return verdicts


def _reference(
    against: str | None,
    entries: Sequence[TableEntry],
    all_series: Sequence[RunSeries],
) -> Reference:
    if against is None:
        return choose_reference(entries)
    named = [series.label for series in all_series if against in (series.label, series.spec)]
    named += [series.label for series in all_series if against == series.name]
    if not named:
        labels = ", ".join(series.label for series in all_series)
        raise SkitError(f"no run of '{against}' to compare with; there are {labels}")
    if any(
        entry.label == named[0] and entry.may_win is False and not entry.is_baseline
        for entry in entries
    ):
        raise SkitError(
            f"--against {against}: its outputs are not lossless, so nothing can be compared with it"
        )
    return Reference(named[0], (named[0],))
