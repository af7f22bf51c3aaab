"""What --fail-if asks of a comparison: conditions on metrics, such as `speedup<0.95`, and the gate
`slower by 5%`.

The gate is a one-sided test on the typical prompt, whose level and power are known: it also says
the smallest difference that a comparison could have shown, and how many prompts tell the first from
the second.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp, hypot, log, sqrt
from statistics import NormalDist

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.condition_terms import ConditionTerms, parse_terms
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.statistics import FEWEST_UNITS, LEVEL
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS, Unit
from specbench_kit.runs.machine.limits import disturbances, ratios_hold

FORM = re.compile(r"\s*slower\s+by\s+(?P<percent>\d*\.?\d+)\s*%\s*")


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate says: a line for each method that `failed`, and for each whose runs are
    `too_small` to tell.
    """

    failed: Sequence[str]
    too_small: Sequence[str]


@dataclass(frozen=True, slots=True)
class SlowerGate:
    """Fails where a method is shown to be slower than the reference, by more than half of `loss`.

    Of equal versions 5 % fail. Of versions that are slower by `loss`, 80 % fail where the runs are
    large enough; where they are not, the gate says how many prompts it takes.
    """

    text: str
    loss: float
    is_timed = True

    @classmethod
    def parse(cls, text: str) -> "SlowerGate | None":
        """Return the gate that a text states; None if it is another condition."""
        if text.split()[:1] != ["slower"]:
            return None
        match = FORM.fullmatch(text)
        loss = float(match["percent"]) / 100 if match else 0.0
        if not 0 < loss < 1:
            raise SkitError(
                f"--fail-if '{text}': expected a loss between 0% and 100%, as in 'slower by 5%'"
            )
        return cls(text, loss)

    def judge(self, comparison: Comparison) -> GateResult:
        """Return what the gate says of every method beside the reference; SkitError if there is
        none.
        """
        judged = [
            series.label
            for series in comparison.series
            if not series.is_baseline and series.label != comparison.reference
        ]
        if not judged:
            raise SkitError(
                f"--fail-if '{self.text}': there is no other run than {comparison.reference} to judge"
            )
        failed = []
        too_small = []
        for label in judged:
            row = comparison.overall[label]
            speed = row.typical_relative_speed
            upper = row.typical_relative_speed_upper
            if speed is None:
                raise SkitError(
                    f"--fail-if '{self.text}': {label} has no prompt in common with {comparison.reference}"
                )
            if upper is not None and upper < 1 and speed < sqrt(1 - self.loss):
                failed.append(
                    f"{label}: {speed:.4g} of the reference's speed, {upper:.4g} at most ({self.text})"
                )
            elif (
                row.typical_relative_speed_error is None or _whole_error(row) > self._largest_error
            ):
                too_small.append(f"{label}: {self._shortfall(row)} ({self.text})")
        return GateResult(failed, too_small)

    @property
    def _largest_error(self) -> float:
        """The largest standard error at which the loss is found often enough."""
        return -log(1 - self.loss) / (_quantile(LEVEL) + _quantile(POWER))

    def _shortfall(self, row: MethodRow) -> str:
        units = row.relative_speed_units
        error = row.typical_relative_speed_error
        if error is None:
            return f"{units} prompts say nothing; at least {FEWEST_UNITS} are needed"
        found = NormalDist().cdf(-log(1 - self.loss) / _whole_error(row) - _quantile(LEVEL))
        words = (
            f"{units} prompts, whose times vary so much, find such a loss in {found:.0%} of cases"
        )
        left = self._largest_error**2 - (row.process_error or 0.0) ** 2
        if left <= 0:
            return f"{words}; more prompts do not help, since processes differ by so much: more --processes do"
        return f"{words}; about {ceil(units * error**2 / left)} find it in {POWER:.0%}"


def _whole_error(row: MethodRow) -> float:
    """Return the standard error over prompts and, of a run in several of them, over processes."""
    return hypot(row.typical_relative_speed_error or 0.0, row.process_error or 0.0)


def _quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)


POWER = 0.8
"""The share of cases in which a difference is found that counts as one that can be shown."""
TOO_MANY = 100_000
"""Prompts from which on nobody would try to tell two methods apart."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Of the fastest rival that no difference is shown to: the `smallest` share by which it would
    have been shown.

    `needed` prompts would show the difference that was seen, None if that is out of reach; `by_process` if it would not
    be without what lasts as long as a process.
    """

    rival: str
    smallest: float
    seen: float
    units: int
    needed: int | None
    by_process: bool = False


def resolution(rows: Iterable[tuple[str, MethodRow]]) -> Resolution | None:
    """Return what could have been shown of the fastest of these rivals; None where its error is not
    known.
    """
    known = [
        (row.typical_relative_speed, row.typical_relative_speed_error, label, row)
        for label, row in rows
        if row.typical_relative_speed and row.typical_relative_speed_error
    ]
    if not known:
        return None
    speed, error, label, row = max(known, key=lambda entry: entry[0])
    seen = abs(log(speed))
    found_in_most = NormalDist().inv_cdf(POWER)
    over_prompts = ((row.typical_relative_speed_limit or 0.0) + found_in_most) * error
    over_processes = (row.process_half_width or 0.0) + found_in_most * (row.process_error or 0.0)
    units = row.relative_speed_units
    # More prompts make the first part smaller alone.
    left = seen**2 - over_processes**2

    def reaches(squared: float) -> bool:
        return squared > 0 and over_prompts**2 < squared * TOO_MANY / units

    needed = ceil(units * over_prompts**2 / left) if reaches(left) else None
    by_process = needed is None and reaches(seen**2)
    smallest = exp(hypot(over_prompts, over_processes)) - 1
    return Resolution(label, smallest, exp(seen) - 1, units, needed, by_process)


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
class Condition(ConditionTerms):
    """`metric[.detail] operator number`; a metric with an interval has the details `low` and
    `high`, its bounds.
    """

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition that a text states; SkitError if it is not a metric, an operator and
        a number.
        """
        return parse_terms(cls, text, UNIT_OF, DETAILS, tuple(BOUNDS))

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
        raise SkitError(
            f"--fail-if cannot be judged, since not all runs could be read: {comparison.problems[0]}"
        )


def disturbed_runs(comparison: Comparison) -> list[str]:
    """Return a line for every run that was timed on a busy or a disturbed machine, by the reports'
    words for it.

    Conditions on time cannot be judged by either: on a busy machine the ratios within a run hold,
    and what is compared may be two runs.
    """
    lines = []
    for run in comparison.runs:
        readings = run.fields.machine
        if why := disturbances(readings):
            state = "busy" if ratios_hold(readings) else "disturbed"
            lines.append(f"run {run.name} was timed on a {state} machine: {'; '.join(why)}")
    return lines


def violations(comparison: Comparison, condition: Condition) -> list[str]:
    """Return a line for every method that fulfils the condition; SkitError if no method or no value
    can be judged.

    Baselines are not judged, nor is the reference where the metric compares with it.
    """
    judged = [series for series in comparison.series if not series.is_baseline]
    if condition.metric in AGAINST_REFERENCE:
        judged = [series for series in judged if series.label != comparison.reference]
    if not judged:
        raise SkitError(
            f"--fail-if '{condition.text}': there is no other method than {comparison.reference} to judge"
        )
    lines = []
    for series in judged:
        value = condition.value(comparison.overall[series.label])
        if value is None:
            raise SkitError(f"--fail-if '{condition.text}': {series.label} has no value for it")
        if condition.holds(value, condition.limit):
            runs = ", ".join(run.name for run in series.runs.values())
            lines.append(f"{series.label}: {condition.sentence(value)}; run {runs}")
    return lines
