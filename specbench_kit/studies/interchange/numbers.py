"""What experiment trackers keep of a run: its parameters, and the numbers of its summary."""

import importlib
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.typed_json import flat
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

PARAMETERS = ("method", "dataset", "models", "config", "deployment", "time_kind", "git_commit")


def numbers_of(run: "RunDirectory") -> dict[str, float]:
    """Return every metric that has a value, over all requests; bounds of intervals end in `_low`
    and `_high`.
    """
    require(
        (run.path / "summary.json").is_file(),
        f"{run.path} has no summary.json: let skit bench --resume finish the run",
    )
    overall = run.summary()["overall"]
    values: dict[str, float | None] = {metric.name: overall.get(metric.name) for metric in METRICS}
    for name, bounds in (overall.get("intervals") or {}).items():
        values[f"{name}_low"], values[f"{name}_high"] = bounds or (None, None)
    for name in (one.name for one in DISTRIBUTIONS):
        values |= {f"{name}_{statistic}_s": value for statistic, value in overall[name].items()}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def parameters_of(run: "RunDirectory") -> dict[str, str]:
    """Return the parameters of the run by dotted name."""
    parameters = {name: run.run.get(name) for name in PARAMETERS}
    return {name: str(value) for name, value in flat(parameters).items() if value is not None}


def load_package(name: str) -> Any:
    """Return a package that not every installation has; SkitError says how to install a missing
    one.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = f"pip install 'specbench-kit[{name}]'"
        raise SkitError(
            f"exporting to {name} needs a package that is not installed: {how}"
        ) from error


def title_of(run: "RunDirectory") -> tuple[str, str]:
    """Return the dataset, under which trackers gather runs, and the run's own name."""
    return f"skit-{run.document.dataset.name or 'unnamed'}", run.path.resolve().name
