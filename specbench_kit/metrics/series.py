"""From runs to the rows of a comparison: a method's runs on every dataset form one series."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from specbench_kit.methods.spec import known_method
from specbench_kit.metrics.comparability import dataset_name
from specbench_kit.metrics.paired import request_seconds
from specbench_kit.metrics.result import MethodSeries
from specbench_kit.metrics.rounds import NO_REQUESTS
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.setting import method_label
from specbench_kit.metrics.vocabulary import BASELINE

RunSeries = MethodSeries[BenchmarkRun]
"""A series whose runs have their requests."""


def arrange(runs: Sequence[BenchmarkRun]) -> list[RunSeries]:
    """Return series in the order of the runs, after the baselines; a second run on a dataset begins
    another series.
    """
    groups: list[tuple[BenchmarkRun, dict[str, BenchmarkRun]]] = []
    for run in runs:
        dataset = dataset_name(run)
        fitting = (
            by_dataset
            for first, by_dataset in groups
            if _same_method(first, run) and dataset not in by_dataset
        )
        by_dataset = next(fitting, None)
        if by_dataset is None:
            groups.append((run, by_dataset := {}))
        by_dataset[dataset] = run
    names = [method_label(first.fields) for first, _ in groups]
    labels = [
        f"{name} #{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
    own = [
        MethodSeries(
            label,
            by_dataset,
            is_baseline=first.method == BASELINE,
            is_bound=(method := known_method(first.method)) is not None and method.is_bound,
        )
        for label, (first, by_dataset) in zip(labels, groups, strict=True)
    ]
    baselines = [series for series in own if series.is_baseline]
    return [
        *baselines,
        *_derived_baselines(own, baselines),
        *(series for series in own if not series.is_baseline),
    ]


def _same_method(first: BenchmarkRun, second: BenchmarkRun) -> bool:
    """Compare by name and resolved options, or by the spec if a run does not hold its options."""
    names = [
        run.method.partition(":")[0] if run.fields.options is not None else run.method
        for run in (first, second)
    ]
    return names[0] == names[1] and first.fields.options == second.fields.options


def _derived_baselines(own: Sequence[RunSeries], baselines: Sequence[RunSeries]) -> list[RunSeries]:
    """Return the baselines that were decoded within other methods' runs, each once."""
    timings = [_timing(series.runs) for series in baselines]
    derived: list[tuple[str, dict[str, BenchmarkRun]]] = []
    for series in own:
        runs = {
            name: replace(
                run,
                fields=structs.replace(run.fields, method=BASELINE, options={}),
                group=run.plain,
                plain=NO_REQUESTS,
                problems=(),
            )
            for name, run in series.runs.items()
            if run.baseline
        }
        if runs and not series.is_baseline and (timing := _timing(runs)) not in timings:
            timings.append(timing)
            derived.append((series.label, runs))
    unique = len(derived) + len(baselines) == 1
    return [
        MethodSeries(
            BASELINE if unique else f"{BASELINE} of {label}",
            runs,
            is_baseline=True,
            is_derived=True,
        )
        for label, runs in derived
    ]


def _timing(runs: Mapping[str, BenchmarkRun]) -> dict[str, dict[tuple[str, int], float]]:
    """Return the seconds of all requests: baselines with the same times are one baseline that
    methods shared.
    """
    return {name: request_seconds(run.records) for name, run in runs.items()}
