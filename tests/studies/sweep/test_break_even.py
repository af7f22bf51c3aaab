"""Break-even points: where a straight line between two points of the grid passes a speedup of 1."""

import pytest

from specbench_kit.studies.sweep.report import Crossing
from specbench_kit.studies.sweep.run import break_even


def test_a_method_that_stops_paying_for_itself() -> None:
    verdict, (crossing,) = break_even([0.01, 0.02, 0.04], [1.5, 1.2, 0.8])
    assert verdict == "in part"
    assert (crossing.low, crossing.high, crossing.stops) == (0.02, 0.04, True)
    assert crossing.at == pytest.approx(0.03)


def test_a_method_that_starts_to_pay_for_itself() -> None:
    _, (crossing,) = break_even([1, 2, 4], [0.5, 1.5, 2])
    assert (crossing.at, crossing.stops) == (pytest.approx(1.5), False)


def test_the_order_of_the_points_does_not_matter() -> None:
    assert break_even([4, 1, 2], [0.5, 2, 1.5]) == break_even([1, 2, 4], [2, 1.5, 0.5])


def test_faster_or_slower_throughout() -> None:
    assert break_even([1, 2], [1.1, 1.01]) == ("everywhere", [])
    assert break_even([1, 2], [0.9, 0.2]) == ("nowhere", [])
    assert break_even([1], [2.0]) == ("everywhere", [])


def test_a_speedup_of_one_beats_nothing() -> None:
    assert break_even([1, 2], [1.0, 1.0]) == ("nowhere", [])
    assert break_even([1, 2], [1.5, 1.0]) == ("in part", [Crossing(1, 2, 2, True)])


def test_a_line_may_pass_one_several_times() -> None:
    _, crossings = break_even([1, 2, 3], [0.5, 1.5, 0.5])
    assert [(crossing.at, crossing.stops) for crossing in crossings] == [(1.5, False), (2.5, True)]
