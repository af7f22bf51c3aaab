"""The grammar of conditions such as `speedup<0.95` or `itl.p99>50ms`: a metric, an operator, a
number and its unit.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specbench_kit.core.durations import require_unit
from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.metrics.vocabulary import Unit

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
"""The units in which a metric may be given, with how many of them make one. Other metrics are plain
numbers.
"""
FORM = re.compile(
    r"\s*(?P<metric>[a-z_]+)(?:\.(?P<detail>\w+))?\s*(?P<operator>[<>]=?)\s*"
    r"(?P<number>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?P<unit>%|x|s|ms|us|)\s*"
)


@dataclass(frozen=True, slots=True)
class ConditionTerms:
    """What a condition compares: a metric, or one detail of it, by an operator, with a limit in the
    metric's unit.

    A kind of condition derives from this, says which metrics it knows, and where their values are.
    """

    text: str
    metric: str
    detail: str | None
    holds: Callable[[float, float], bool]
    limit: float

    def sentence(self, value: float) -> str:
        """Return the value that fulfils the condition, with the condition."""
        name = ".".join(filter(None, (self.metric, self.detail)))
        return f"{name} is {value:.4g} ({self.text})"


C = TypeVar("C", bound=ConditionTerms)
"""A kind of condition."""


def parse_terms(
    kind: type[C],
    text: str,
    units: Mapping[str, Unit],
    details: Mapping[str, Sequence[str]],
    optional_details: Sequence[str],
) -> C:
    """Return the condition of this kind on one of the metrics in `units` or `details`.

    `details` are those that must follow a metric which is several numbers; any other metric may have one of
    `optional_details`. Raise SkitError if the text is no condition, or names anything unknown.
    """
    match = FORM.fullmatch(text)
    if not match:
        raise SkitError(
            f"--fail-if '{text}': expected a metric, <, <=, > or >=, and a number, as in 'speedup<0.95'"
        )
    metric = match["metric"]
    detail = match["detail"]
    unit = match["unit"]
    names = [*units, *(name for name in details if name not in units)]
    if metric not in names:
        hint = did_you_mean(metric, names)
        raise SkitError(
            f"--fail-if '{text}': unknown metric '{metric}'{hint}; known: {', '.join(names)}"
        )
    known = details.get(metric, optional_details)
    if (detail or metric in details) and detail not in known:
        choices = ", ".join(f"{metric}.{name}" for name in known) or f"{metric} alone"
        raise SkitError(f"--fail-if '{text}': {metric} needs one of {choices}")
    factors = UNITS.get(units.get(metric, "count"), {"": 1})
    if unit not in factors:
        choices = ", ".join(filter(None, factors)) or "none"
        raise SkitError(
            f"--fail-if '{text}': {metric} is not measured in {unit}; its units: {choices}"
        )
    if "ms" in factors:
        require_unit(f"--fail-if '{text}'", match["number"], unit)
    return kind(
        text, metric, detail, OPERATORS[match["operator"]], float(match["number"]) / factors[unit]
    )
