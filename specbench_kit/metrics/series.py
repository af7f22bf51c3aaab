"""From runs to the rows of a comparison: a method's runs on every dataset make one series."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import Group, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.comparability import dataset_name
from specbench_kit.metrics.paired import request_seconds
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.setting import method_label
from specbench_kit.metrics.vocabulary import BASELINE


@dataclass(frozen=True, slots=True)
class MethodSeries:
    """A row of every table: one method's runs by dataset.

    `is_bound`: it cannot be deployed, so it is no candidate for the best. `is_derived`: a baseline that was decoded
    with other methods and has no run directory of its own.
    """

    label: str
    runs: Mapping[str, BenchmarkRun]
    is_baseline: bool = False
    is_bound: bool = False
    is_derived: bool = False

    @property
    def spec(self) -> str:
        """The method with its options."""
        return next(iter(self.runs.values())).method

    @property
    def group(self) -> Group:
        """What the method decides by; of one that is not known here, other."""
        known = methods.all().get(self.name)
        return known.group if known else "other"

    @property
    def name(self) -> str:
        """The method without its options."""
        return self.spec.partition(":")[0]


def arrange(runs: Sequence[BenchmarkRun]) -> list[MethodSeries]:
    """Series in the order of the runs, behind the baselines; a method's second run on a dataset begins another."""
    found: list[tuple[BenchmarkRun, dict[str, BenchmarkRun]]] = []
    for run in runs:
        dataset = dataset_name(run)
        place = next((runs for first, runs in found if _same_method(first, run) and dataset not in runs), None)
        if place is None:
            found.append((run, place := {}))
        place[dataset] = run
    labels = _numbered([method_label(first.fields) for first, _ in found])
    own = [_series(label, runs) for label, (_, runs) in zip(labels, found, strict=True)]
    baselines = [one for one in own if one.is_baseline]
    return [*baselines, *_derived(own, baselines), *(one for one in own if not one.is_baseline)]


def _same_method(one: BenchmarkRun, other: BenchmarkRun) -> bool:
    """By name and resolved options, or by the spec where a run does not know its options."""
    names = [run.method.partition(":")[0] if "options" in run.fields else run.method for run in (one, other)]
    return names[0] == names[1] and one.fields.get("options") == other.fields.get("options")


def _series(label: str, runs: Mapping[str, BenchmarkRun]) -> MethodSeries:
    spec = next(iter(runs.values())).method
    return MethodSeries(label, runs, is_baseline=spec == BASELINE, is_bound=_reads_reference(spec))


def _reads_reference(spec: str) -> bool:
    try:
        return parse_method(spec).needs_reference
    except SkitError:  # of another tool, or of a kit that knows more methods
        return False


def _derived(own: Sequence[MethodSeries], baselines: Sequence[MethodSeries]) -> list[MethodSeries]:
    """The baselines inside of runs, less those that are there already."""
    known = [_timing(one) for one in baselines]
    found: list[tuple[str, dict[str, BenchmarkRun]]] = []
    for one in own:
        runs = {name: _baseline_of(run) for name, run in one.runs.items() if run.baseline}
        if runs and not one.is_baseline and (timing := _timing(MethodSeries("", runs))) not in known:
            known.append(timing)
            found.append((one.label, runs))
    alone = len(found) + len(baselines) == 1
    return [
        MethodSeries(BASELINE if alone else f"{BASELINE} of {label}", runs, is_baseline=True, is_derived=True)
        for label, runs in found
    ]


def _timing(series: MethodSeries) -> dict[str, dict[tuple[str, int], float]]:
    return {name: request_seconds(run.records) for name, run in series.runs.items()}


def _baseline_of(run: BenchmarkRun) -> BenchmarkRun:
    fields = {**run.fields, "method": BASELINE, "options": {}}
    return replace(run, fields=fields, records=run.baseline, baseline=[], problems=())


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number where one occurs again."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(f"{name} #{seen[name]}" if names.count(name) > 1 else name)
    return labels
