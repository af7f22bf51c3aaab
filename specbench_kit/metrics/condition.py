"""Conditions on metrics, such as `speedup<0.95`, under which a comparison fails."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.condition_terms import parse_terms
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS, Unit
from specbench_kit.runs.machine.limits import disturbances

BOUNDS = {"low": 0, "high": 1}
UNIT_OF: dict[str, Unit] = {metric.name: metric.unit for metric in METRICS} | {
    **dict.fromkeys((*(one.name for one in DISTRIBUTIONS), "phase_seconds"), "seconds"),
    "phase_share": "share",
}
DETAILS = {
    **dict.fromkeys((one.name for one in DISTRIBUTIONS), ("mean", "p50", "p95", "p99")),
    **dict.fromkeys(("phase_seconds", "phase_share"), PHASES),
    "lossless": ("errors", "ties", "unjudged", "identical", "compared"),
}
"""The details that must follow the names of metrics that are several numbers."""
TIMELESS = frozenset(metric.name for metric in METRICS if metric.traits.timeless) | {"lossless"}
"""Metrics without a time in them, which a busy machine does not change."""
AGAINST_REFERENCE = frozenset(metric.name for metric in METRICS if metric.traits.relative)


@dataclass(frozen=True, slots=True)
class Condition:
    """`metric[.detail] operator number`; a metric with an interval has the details `low` and `high`, its bounds."""

    text: str
    metric: str
    detail: str | None
    holds: Callable[[float, float], bool]
    limit: float

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition that a text states; SkitError if it is not a metric, an operator and a number."""
        terms = parse_terms(text, UNIT_OF, DETAILS, tuple(BOUNDS))
        return cls(text, terms.metric, terms.detail, terms.holds, terms.limit)

    @property
    def is_timed(self) -> bool:
        """Return True if the metric depends on the clock."""
        return self.metric not in TIMELESS

    def value(self, row: MethodRow) -> float | None:
        """Return the metric's value in a row; None if the row has none."""
        if self.metric in DETAILS:
            value: float | None = getattr(getattr(row, self.metric), self.detail or "", None)
            return value
        if self.detail:
            bounds = row.bounds(self.metric)
            return bounds[BOUNDS[self.detail]] if bounds else None
        return row.value(self.metric)


def require_readable(comparison: Comparison) -> None:
    """Raise SkitError if a run could not be read: no condition may pass because data is missing."""
    if comparison.problems:
        raise SkitError(f"--fail-if cannot be judged, since not all runs could be read: {comparison.problems[0]}")


def disturbed_runs(comparison: Comparison) -> list[str]:
    """Return a line for every run that was timed on a disturbed machine: conditions on time cannot be judged by it."""
    reasons = {run.name: disturbances(run.fields.machine) for run in comparison.runs}
    return [f"run {name} was timed on a disturbed machine: {'; '.join(why)}" for name, why in reasons.items() if why]


def violations(comparison: Comparison, condition: Condition) -> list[str]:
    """Return a line for every method that fulfils the condition; SkitError if no method or no value can be judged.

    Baselines are not judged, nor is the reference where the metric compares with it.
    """
    judged = [series for series in comparison.series if not series.is_baseline]
    if condition.metric in AGAINST_REFERENCE:
        judged = [series for series in judged if series.label != comparison.reference]
    if not judged:
        raise SkitError(f"--fail-if '{condition.text}': there is no other method than {comparison.reference} to judge")
    lines = []
    for series in judged:
        value = condition.value(comparison.overall[series.label])
        if value is None:
            raise SkitError(f"--fail-if '{condition.text}': {series.label} has no value for it")
        if condition.holds(value, condition.limit):
            name = ".".join(filter(None, (condition.metric, condition.detail)))
            runs = ", ".join(run.name for run in series.runs.values())
            lines.append(f"{series.label}: {name} is {value:.4g} ({condition.text}); run {runs}")
    return lines
