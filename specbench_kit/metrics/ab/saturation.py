"""The load from which on a server is over-saturated: it gets more requests than it can answer."""

from collections.abc import Mapping, Sequence

import numpy as np

from specbench_kit.metrics.ab.answers import AnswerRecord
from specbench_kit.metrics.ab.figures import turn_spans
from specbench_kit.metrics.statistics import Array, Ratio, interval_of_estimate

MOST_GROWTH = 0.1
"""Seconds by which answers may take longer for every second that requests arrive later, as they do in a warm-up."""
LEAST_GAIN = 0.1
"""Share of a proportional gain in throughput that more requests in flight must bring."""


def over_saturation(
    records: Sequence[AnswerRecord], load: str, concurrencies: Mapping[str, int], lower: str | None
) -> str | None:
    """Return why a server is over-saturated at a load; None if that is not shown, with 95% confidence.

    `records` are those of one server at all loads. `concurrencies` are the requests in flight at each load; a load that
    is not among them has arrivals at fixed times. `lower` is the next lower load.
    """
    own = [record for record in records if record.key.load == load]
    if load not in concurrencies:
        growth = _growth(own)
        if growth is None or growth[1] <= MOST_GROWTH:
            return None
        return f"answers take {growth[0]:.2g} s longer for every second that requests arrive later"
    if lower is None:
        return None
    gain = _gain([record for record in records if record.key.load == lower], own)
    needed = 1 + LEAST_GAIN * (concurrencies[load] / concurrencies[lower] - 1)
    if gain is None or gain[1] >= needed:
        return None
    return f"its throughput is {gain[0]:.2f} times that at {lower}"


def _growth(records: Sequence[AnswerRecord]) -> tuple[float, float] | None:
    """Return the slope of end-to-end times over times of arrival within turns, and the lower end of its interval.

    A server that keeps up answers late requests of a turn as fast as early ones; at one that does not they queue.
    """
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for record in records:
        if record.answer is not None and record.key.dialogue_turn == 0:
            place = record.key.repeat, record.turn
            groups.setdefault(place, []).append((record.sent_s - record.late_s, record.answer.e2e_s))
    rows = 1 + max((turn for _, turn in groups), default=0)
    products = np.zeros(rows)
    squares = np.zeros(rows)
    for (_, turn), points in groups.items():
        arrived_s, took_s = np.array(points).T
        arrived_s = arrived_s - arrived_s.mean()
        products[turn] += float(arrived_s @ took_s)
        squares[turn] += float(arrived_s @ arrived_s)
    if not squares.any() or (squares == squares.sum()).any():
        return None
    slope = float(products.sum() / squares.sum())
    without: Array = (products.sum() - products) / (squares.sum() - squares)
    bounds = interval_of_estimate(slope, without, squares)
    return (slope, bounds[0]) if bounds else None


def _gain(lower: Sequence[AnswerRecord], higher: Sequence[AnswerRecord]) -> tuple[float, float] | None:
    """Return how many times higher the throughput at the higher load is, and the upper end of its interval."""
    first = _throughput(lower)
    second = _throughput(higher)
    if first is None or second is None:
        return None
    # Both loads have turns of their own, whose errors are taken to be independent.
    both = Ratio(
        second.value / first.value,
        np.concatenate([second.residuals, -first.residuals]),
        min(first.units, second.units),
        min(first.freedom, second.freedom),
    )
    bounds = both.interval()
    return (both.value, bounds[1]) if bounds else None


def _throughput(records: Sequence[AnswerRecord]) -> Ratio | None:
    """Return the tokens per second in turns; the repeats of a turn are one unit."""
    rows = 1 + max((record.turn for record in records), default=0)
    tokens = np.zeros(rows)
    seconds = np.zeros(rows)
    for record in records:
        tokens[record.turn] += record.answer.tokens if record.answer else 0
    for (_, turn), (begin_s, end_s) in turn_spans(records).items():
        seconds[turn] += end_s - begin_s
    return Ratio.of([tokens], [seconds])
