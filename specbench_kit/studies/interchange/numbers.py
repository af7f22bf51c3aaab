"""What trackers keep of a run: what it was asked, and the numbers of its summary."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.nested import flat
from specbench_kit.core.renamed import with_current_names
from specbench_kit.core.typed_json import parse
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

Fields = dict[str, Any]
PARAMETERS = ("method", "dataset", "models", "config", "deployment", "time_kind", "git_commit")


def numbers_of(run: "RunDirectory") -> dict[str, float]:
    """Every metric that has a value, over all requests; bounds of intervals end in `_low` and `_high`."""
    overall = summary_of(run)["overall"]
    found: Fields = {metric.name: overall.get(metric.name) for metric in METRICS}
    for name, bounds in (overall.get("intervals") or {}).items():
        found[f"{name}_low"], found[f"{name}_high"] = bounds or (None, None)
    for name in DISTRIBUTIONS:
        found |= {f"{name}_{statistic}_s": value for statistic, value in overall[name].items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def summary_of(run: "RunDirectory") -> Fields:
    """The summary of a finished run."""
    path = run.path / "summary.json"
    if not path.is_file():
        raise SkitError(f"{run.path} has no summary.json: let skit bench --resume finish the run")
    summary: Fields = with_current_names(parse(path.read_text(encoding="utf-8")), str(path))
    return summary


def parameters_of(run: "RunDirectory") -> dict[str, str]:
    """What was run on what, by dotted name."""
    asked = {name: run.run.get(name) for name in PARAMETERS}
    return {name: str(value) for name, value in flat(asked).items() if value is not None}


def load_package(name: str) -> Any:
    """A package that not every installation has; a missing one is an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = f"pip install 'specbench-kit[{name}]'"
        raise SkitError(f"exporting to {name} needs a package that is not here: {how}") from error


def title_of(run: "RunDirectory") -> tuple[str, str]:
    """The dataset, under which trackers gather runs, and the run's own name."""
    dataset: Mapping[str, Any] = run.run.get("dataset") or {}
    return f"skit-{dataset.get('name') or 'unnamed'}", run.path.resolve().name
