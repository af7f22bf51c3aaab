"""Conditions on metrics, such as `speedup<0.95`, under which a comparison fails."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.renamed import current_name
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS, Unit
from specbench_kit.runs.machine.limits import disturbances

Row = Mapping[str, Any]

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
UNITS: dict[Unit, dict[str, float]] = {
    "seconds": {"": 1, "s": 1, "ms": 1_000, "us": 1_000_000},
    "share": {"": 1, "%": 100},
    "times": {"": 1, "x": 1, "%": 100},
}
"""What a metric may be compared in: units, and how many of them make one. All others are plain numbers."""
FORM = re.compile(
    r"\s*(?P<metric>[a-z_]+)(?:\.(?P<detail>\w+))?\s*(?P<operator>[<>]=?)\s*"
    r"(?P<number>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?P<unit>%|x|s|ms|us|)\s*"
)
BOUNDS = {"low": 0, "high": 1}
UNIT_OF: dict[str, Unit] = {metric.name: metric.unit for metric in METRICS} | {
    **dict.fromkeys((*DISTRIBUTIONS, "phase_seconds"), "seconds"),
    "phase_share": "share",
}
DETAILS = {
    **dict.fromkeys(DISTRIBUTIONS, ("mean", "p50", "p95", "p99")),
    **dict.fromkeys(("phase_seconds", "phase_share"), PHASES),
    "lossless": ("errors", "ties", "identical", "compared"),
}
"""What must follow the names of metrics that are several numbers."""
COUNTED = (
    *("finished", "failed", "rounds", "tokens", "drafted", "submitted", "accepted", "acceptance_length"),
    *(
        "acceptance_length_sd",
        "acceptance_length_request_mean",
        "acceptance_rate",
        "acceptance_rate_request_mean",
        "draft_efficiency",
    ),
    *("wasted_tokens", "lossless"),
)
"""Metrics without a time in them, which a busy machine leaves as they are."""
AGAINST_REFERENCE = ("relative_speed", "win_share_against", "baseline_ratio")


@dataclass(frozen=True, slots=True)
class Condition:
    """`metric[.detail] operator number`: of a metric with an interval, `low` and `high` are its ends."""

    text: str
    metric: str
    detail: str | None
    holds: Callable[[float, float], bool]
    limit: float

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition; anything but a known metric, an operator and a number is an error."""
        found = FORM.fullmatch(text)
        if not found:
            raise SkitError(
                f"--fail-if '{text}': expected a metric, <, <=, > or >=, and a number, as in 'speedup<0.95'"
            )
        metric, detail = current_name(found["metric"], "--fail-if"), found["detail"]
        _check(text, metric, detail)
        units = UNITS.get(UNIT_OF.get(metric, "count"), {"": 1})
        if found["unit"] not in units:
            known = ", ".join(filter(None, units)) or "none"
            raise SkitError(f"--fail-if '{text}': {metric} is not counted in {found['unit']}; its units: {known}")
        limit = float(found["number"]) / units[found["unit"]]
        return cls(text, metric, detail, OPERATORS[found["operator"]], limit)

    @property
    def is_timed(self) -> bool:
        """Whether the metric is worth only as much as the clock."""
        return self.metric not in COUNTED

    def value(self, row: Row) -> float | None:
        """The metric's value in a row."""
        if self.metric in DETAILS:
            found: float | None = (row.get(self.metric) or {}).get(self.detail)
            return found
        if self.detail:
            bounds = row["intervals"].get(self.metric)
            return bounds[BOUNDS[self.detail]] if bounds else None
        return row.get(self.metric)


def _check(text: str, metric: str, detail: str | None) -> None:
    names = [*(one.name for one in METRICS), *DETAILS]
    if metric not in names:
        hint = did_you_mean(metric, names)
        raise SkitError(f"--fail-if '{text}': unknown metric '{metric}'{hint}; known: {', '.join(names)}")
    known = DETAILS.get(metric, tuple(BOUNDS))
    if (detail or metric in DETAILS) and detail not in known:
        raise SkitError(f"--fail-if '{text}': {metric} needs one of {', '.join(f'{metric}.{one}' for one in known)}")


def require_readable(comparison: Comparison) -> None:
    """Nothing passes for want of what could not be read."""
    if comparison.problems:
        raise SkitError(f"--fail-if cannot be judged, since not all runs could be read: {comparison.problems[0]}")


def disturbed_runs(comparison: Comparison) -> list[str]:
    """A line for every run that was timed on a disturbed machine: no condition on time can be judged by it."""
    found = {run.name: disturbances(run.fields.get("machine") or []) for run in comparison.runs}
    return [f"run {name} was timed on a disturbed machine: {'; '.join(why)}" for name, why in found.items() if why]


def violations(comparison: Comparison, condition: Condition) -> list[str]:
    """A line for every method that fulfils the condition; no method, or one without a value, is an error.

    Baselines are not judged, and the reference not against itself.
    """
    judged = [one for one in comparison.series if not one.is_baseline]
    if condition.metric in AGAINST_REFERENCE:
        judged = [one for one in judged if one.label != comparison.reference]
    if not judged:
        raise SkitError(f"--fail-if '{condition.text}': there is nothing beside {comparison.reference} to judge")
    found = []
    for one in judged:
        value = condition.value(comparison.overall[one.label])
        if value is None:
            raise SkitError(f"--fail-if '{condition.text}': {one.label} has no value for it")
        if condition.holds(value, condition.limit):
            name = ".".join(filter(None, (condition.metric, condition.detail)))
            runs = ", ".join(run.name for run in one.runs.values())
            found.append(f"{one.label}: {name} is {value:.4g} ({condition.text}); run {runs}")
    return found
