"""Ratios of sums over units, and what their intervals hold."""

import numpy as np
import pytest
from nightly import nightly_except

from benchmarks.calibration import Scene
from specbench_kit.metrics.statistics import (
    FEWEST_UNITS,
    Ratio,
    interval_of_estimate,
    interval_of_ratio,
    ratio_of_sums,
    student,
)

RNG = np.random.default_rng(5)


def test_ratio_of_sums_has_no_value_over_zero():
    assert ratio_of_sums(3, 4) == 0.75
    assert ratio_of_sums(3, 0) is None


def test_the_interval_of_a_ratio_of_equal_units_by_hand():
    """Ten denominators of 1, numerators of .9 and 1.1: each residual is .1 / 10, over the .9 left without its unit."""
    tops = [0.9, 1.1] * 5
    ratio = Ratio.of([tops], [np.ones(10)])
    assert (ratio.value, ratio.units, ratio.freedom) == (
        pytest.approx(1),
        10,
        pytest.approx(9, abs=0.1),
    )
    error = np.sqrt(sum(((top - 1) / 10 / (1 - (top + 1) / 20)) ** 2 for top in tops))
    assert ratio.standard_error == pytest.approx(error)
    low, high = ratio.interval()
    assert np.log([low, high]) == pytest.approx(
        np.array([-1, 1]) * student(0.95, ratio.freedom) * error
    )
    assert student(0.95, 9) == pytest.approx(2.262, abs=1e-3)


def test_one_prompt_that_is_most_of_the_time_leaves_few_degrees_of_freedom():
    lengths = np.array([1000.0, *[10.0] * 19])
    even = Ratio.of([lengths * RNG.lognormal(0, 0.1, 20)], [lengths])
    assert even.units == 20
    assert even.freedom == 1.0


def test_a_product_of_ratios_cancels_what_stands_on_both_sides():
    own, rival, plain = RNG.lognormal(3, 1, (3, 12))
    through_baseline, direct = Ratio.of([plain, rival], [own, plain]), Ratio.of([rival], [own])
    assert through_baseline.value == pytest.approx(direct.value)
    slower = Ratio.of([1.1 * plain, rival], [1.1 * own, plain])
    assert slower.value == pytest.approx(direct.value)
    assert slower.residuals == pytest.approx(through_baseline.residuals)


@pytest.mark.parametrize("units", [1, FEWEST_UNITS - 1])
def test_few_units_have_no_interval(units):
    tops, bases = RNG.lognormal(0, 0.1, (2, units))
    assert interval_of_ratio(tops, bases) is None
    assert interval_of_estimate(1.0, tops, bases) is None


def test_an_interval_without_width_is_none():
    lengths = RNG.lognormal(3, 1, 12)
    assert interval_of_ratio(1.1 * lengths, lengths) is None
    assert interval_of_ratio(np.zeros(12), lengths) is None


@pytest.mark.parametrize(
    ("methods", "experiments", "most_false"),
    nightly_except([(8, 75, 9)], [(2, 400, 34), (8, 75, 9)]),
)
def test_equal_methods_are_seldom_called_different(methods, experiments, most_false):
    """If 5% of the verdicts were false, more than `most_false` would have p < .005."""
    false, _, hold = Scene("log-normal", methods, 10).rates(experiments)
    assert false <= most_false / experiments
    assert hold >= 0.92


@pytest.mark.parametrize("noise", ["log-normal", "outliers", "spells", "drift"])
def test_a_true_difference_is_found_whatever_the_machine_does(noise):
    """A difference of 20% between two methods on 20 prompts: found in nine of ten experiments and more."""
    _, found_share, _ = Scene(noise, 2, 20, gain=0.2).rates(40)
    assert found_share >= 0.75
