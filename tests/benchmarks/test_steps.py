"""The range that the law of a step states for a card whose kernels nobody has measured."""

import numpy as np

from benchmarks.steps import spread_on_new_card


def test_nine_of_ten_times_on_a_further_card_lie_in_the_range() -> None:
    """Six cards that are off by 6% each, and steps by 7% around that; the quantiles of all steps cover too little."""
    random = np.random.default_rng(0)
    covered, by_quantiles = [], []
    for _ in range(200):
        cards = random.normal(0, 0.06, 7)
        logs = [card + random.normal(0, 0.07, 60) for card in cards]
        *measured_logs, further = logs
        low, high = np.log(spread_on_new_card(measured_logs))
        covered.append(((further >= low) & (further <= high)).mean())
        least, greatest = np.quantile(np.concatenate(measured_logs), (0.05, 0.95))
        by_quantiles.append(((further >= least) & (further <= greatest)).mean())
    assert 0.88 < np.mean(covered) < 0.94
    assert np.mean(by_quantiles) < 0.88


def test_a_card_that_is_further_off_widens_the_range() -> None:
    steps = np.linspace(-0.05, 0.05, 21)
    alike = [shift + steps for shift in (-0.01, 0.0, 0.01)]
    apart = [*alike[:2], 0.3 + steps]
    low, high = spread_on_new_card(alike)
    wider_low, wider_high = spread_on_new_card(apart)
    assert wider_low < low < 1 < high < wider_high
