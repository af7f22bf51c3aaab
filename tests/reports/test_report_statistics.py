import numpy as np
import pytest
from specbench_kit.reports.statistics import bootstrap_difference, bootstrap_ratio, ratio_of_sums, resampled_sums


def test_ratio_of_sums_has_no_value_over_zero():
    assert ratio_of_sums(3, 4) == 0.75
    assert ratio_of_sums(3, 0) is None


def test_resampled_columns_stay_paired():
    sums = resampled_sums([[1, 10], [2, 20], [5, 50]], resamples=50)
    assert sums.shape == (50, 2)
    assert np.array_equal(sums[:, 1], 10 * sums[:, 0])
    assert sums[:, 0].min() >= 3 * 1
    assert sums[:, 0].max() <= 3 * 5


def test_the_same_seed_gives_the_same_interval():
    left, right = np.random.default_rng(0).uniform(1, 2, size=(2, 20))
    assert bootstrap_ratio(left, right, seed=1) == bootstrap_ratio(left, right, seed=1)
    assert bootstrap_ratio(left, right, seed=1) != bootstrap_ratio(left, right, seed=2)


def test_a_constant_ratio_has_no_spread_however_the_pairs_vary():
    times = np.array([1.0, 10.0, 100.0])
    assert bootstrap_ratio(2 * times, times) == [2.0, 2.0]
    assert bootstrap_difference(times + 3, times) == pytest.approx([3.0, 3.0])


def test_one_pair_has_no_interval():
    assert bootstrap_ratio([2.0], [1.0]) is None
    assert bootstrap_difference([2.0], [1.0]) is None


def test_resamples_with_a_zero_denominator_are_left_out():
    low, high = bootstrap_ratio([2.0, 0.0], [1.0, 0.0])
    assert low == high == 2.0
    assert bootstrap_ratio([0.0, 0.0], [0.0, 0.0]) is None


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        base = rng.uniform(0.5, 1.5, size=60)
        low, high = bootstrap_ratio(base * rng.normal(1.5, 0.3, size=60), base, resamples=400, seed=trial)
        covered += low <= 1.5 <= high
    assert 0.88 <= covered / 200 <= 0.99
