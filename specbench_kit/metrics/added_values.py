"""Values and intervals of the metrics that other packages bring."""

from math import isfinite

import numpy as np

from specbench_kit.core.plain_text import one_line
from specbench_kit.core.registry import plug_in_problem
from specbench_kit.decoding.records import Records
from specbench_kit.metrics.added import AddedMetric, added_metrics
from specbench_kit.metrics.statistics import FEWEST_UNITS, Units, interval_of_estimate
from specbench_kit.metrics.vocabulary import Interval

MOST_PARTS = 100
"""Parts of the prompts of which each is left out once for an interval; more prompts share parts."""


def values_and_intervals(
    records: Records, units: Units
) -> tuple[dict[str, float | None], dict[str, Interval | None]]:
    """Return the added metrics of finished requests by name, and their intervals over prompts,
    which `units` number.

    A metric that fails is left out with a warning: what was decoded is worth more than it.
    """
    values: dict[str, float | None] = {}
    intervals: dict[str, Interval | None] = {}
    for name, kind in added_metrics.all().items():
        try:
            metric = kind()
            values[name] = _number(metric.of(records)) if records else None
            intervals[name] = _interval(metric, values[name], records, units)
        except Exception as error:  # whatever is wrong with it, nothing else depends on it
            reason = plug_in_problem(error) or one_line(f"{type(error).__name__}: {error}")
            added_metrics.leave_out(name, f"the metric '{name}' has no values: {reason}")
            values.pop(name, None)
    return values, intervals


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"of() must return a number or None, not {type(value).__name__}")
    return float(value) if isfinite(float(value)) else None


def _interval(
    metric: AddedMetric, value: float | None, records: Records, units: Units
) -> Interval | None:
    """Return the interval over prompts; None where these are too few, or where one of the values
    without some of them is not known.
    """
    parts = sorted({units[record.request_id] for record in records})
    if value is None or len(parts) < FEWEST_UNITS:
        return None
    part_of = {unit: number % MOST_PARTS for number, unit in enumerate(parts)}
    placed = [(part_of[units[record.request_id]], record) for record in records]
    weights = np.zeros(min(len(parts), MOST_PARTS))
    for part, record in placed:
        weights[part] += len(record.output_ids)
    without = []
    for left_out in range(len(weights)):
        rest = _number(metric.of([record for part, record in placed if part != left_out]))
        without.append(float("nan") if rest is None else rest)
    return interval_of_estimate(value, np.array(without), weights)
