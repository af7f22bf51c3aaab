"""Arrivals with a rate that changes over time."""

import numpy as np
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.arrival_spec import parse_arrivals
from specbench_kit.serving.arrivals import Levels, VaryingRate, Waves

DEVICES = 4
CHANGING = [Waves(8.0, period_s=50.0, swing=0.9), Levels(8.0, span_s=10.0, cv=1.5, spans=5, seed=3)]


def arrivals(of: VaryingRate, each: int) -> np.ndarray:
    """Return times [each, devices], from one random number for each."""
    random, at_s = np.random.default_rng(1), np.zeros(DEVICES)
    arrivals_s = []
    for number in range(each):
        count, uniform = np.full(DEVICES, number), random.random(DEVICES)
        at_s = of.next_requests(np.arange(DEVICES), DEVICES, count, at_s, uniform).at_s
        arrivals_s.append(at_s)
    return np.array(arrivals_s)


@pytest.mark.parametrize("changing", CHANGING)
def test_as_many_come_as_the_rate_of_each_part_of_a_cycle_asks_for(changing: VaryingRate) -> None:
    seconds, rates = changing.cycle()
    at_s = np.sort(arrivals(changing, 4000).ravel())
    at_s = at_s[at_s < 40 * seconds[-1]]
    expected = rates * np.diff(seconds) / np.sum(rates * np.diff(seconds)) * 40 * 8.0 * seconds[-1]
    fifths = np.interp(
        np.linspace(0, seconds[-1], 6), seconds, np.concatenate([[0.0], np.cumsum(expected)])
    )
    arrived = np.histogram(at_s % seconds[-1], np.linspace(0, seconds[-1], 6))[0]
    due = np.diff(fifths)
    assert np.abs(arrived - due).max() < 4 * np.sqrt(due.max())
    assert due.max() > 1.5 * due.min()


def test_a_rate_that_does_not_change_is_that_of_random_arrivals() -> None:
    even, random = Waves(8.0, swing=0.0), parse_arrivals("poisson:rate_per_s=8", 1.0)
    arguments = (
        np.arange(3),
        3,
        np.zeros(3, dtype=int),
        np.array([0.0, 130.0, 260.0]),
        np.array([0.1, 0.5, 0.9]),
    )
    assert even.next_requests(*arguments).at_s == pytest.approx(
        random.next_requests(*arguments).at_s
    )


def test_named_on_the_command_line_and_scaled_in_rate() -> None:
    assert parse_arrivals("levels:rate_per_s=2,cv=0.5,span_s=5", 1.0) == Levels(
        2.0, span_s=5.0, cv=0.5
    )
    assert Waves(1.0, swing=0.5).at_rate(3.0) == Waves(3.0, swing=0.5)
    with pytest.raises(SkitError, match="swing is a share from 0 to 1, not 2"):
        parse_arrivals("waves:rate_per_s=2,swing=2", 1.0)
