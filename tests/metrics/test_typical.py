"""The typical prompt's ratio, beside another implementation of signed ranks, and what holds for a whole table."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.paired import Side, speedup
from specbench_kit.metrics.simultaneous import TypicalFamily
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.typical import Typical, limit_of_one
from specbench_kit.metrics.verdicts import BY_PROMPT, FASTER, NO_DIFFERENCE, TOO_FEW

RNG = np.random.default_rng(11)


def test_the_estimate_by_hand() -> None:
    """The means of pairs of 0, 1 and 5 are 0, .5, 1, 2.5, 3 and 5."""
    typical = Typical.of(np.array([5.0, 0.0, 1.0]))
    assert typical is not None
    assert typical.pair_means.tolist() == [0.0, 0.5, 1.0, 2.5, 3.0, 5.0]
    assert typical.value == pytest.approx(np.exp(1.75))
    assert typical.deviation == pytest.approx((5.5 - 3) / np.sqrt(3 * 4 * 7 / 24))


@pytest.mark.parametrize("units", [6, 7, 10, 19, 40])
def test_an_interval_holds_1_exactly_where_wilcoxons_test_shows_nothing(units: int) -> None:
    shown = 0
    for _ in range(60):
        logs = RNG.normal(0.07, 0.1, units)
        typical = Typical.of(logs)
        assert typical is not None
        low, high = typical.interval() or (0.0, np.inf)
        is_shown = wilcoxon(logs, method="exact").pvalue <= 0.05
        assert (not low <= 1 <= high) == is_shown == (abs(typical.deviation) > limit_of_one(units))
        shown += is_shown
    assert 0 < shown < 60 or units == 40


def test_too_few_units_have_no_interval() -> None:
    few = Typical.of(RNG.normal(1, 0.1, FEWEST_UNITS - 1))
    assert few is not None
    assert few.interval() is None
    six = Typical.of(np.linspace(1, 2, FEWEST_UNITS))
    assert six is not None
    assert six.interval() == pytest.approx([np.exp(1), np.exp(2)])
    assert six.interval(limit=2.3) is None, "the largest deviation of six units is 2.2"


def side(own: list[float], plain: list[float]) -> Side:
    records = [
        [RequestRecord(str(n), "", [1], [2], e2e_s=s) for n, s in enumerate(times)]
        for times in (own, plain)
    ]
    return Side.of(*records)


UNITS = {str(number): number for number in range(12)}


def test_one_disturbed_prompt_hides_no_difference() -> None:
    """Eleven prompts are a fifth faster, and the longest was held up by the machine."""
    plain = [1.0] * 11 + [10.0]
    own = [0.8 + 0.001 * number for number in range(11)] + [14.0]
    speed = speedup(side(own, plain), UNITS)
    assert speed is not None
    assert speed.ratio.value == pytest.approx(21 / (8.855 + 14))
    low, high = speed.interval() or (0.0, 0.0)
    assert low < 1 < high
    assert speed.typical.value == pytest.approx(1.24, abs=0.01)
    assert speed.verdict() == FASTER


def test_what_is_faster_on_most_prompts_and_slower_in_all_is_called_neither() -> None:
    plain = [0.1] * 9 + [10.0, 11.0, 12.0]
    own = [0.08 + 0.0001 * number for number in range(9)] + [10.01, 13.0, 15.0]
    many = {str(number): number for number in range(120)}
    speed = speedup(side(own * 10, plain * 10), many)
    assert speed is not None
    _, high = speed.interval() or (0.0, 0.0)
    assert high < 1 < speed.typical.value
    assert speed.verdict() == BY_PROMPT


def test_the_median_of_repeats_counts() -> None:
    """Every second prompt has one repeat in three that took twice as long."""
    records = [
        RequestRecord(
            str(prompt),
            "",
            [1],
            [2],
            e2e_s=(0.9 + 0.001 * prompt) * (2 if prompt % 2 and not repeat else 1),
        )
        for prompt in range(12)
        for repeat in range(3)
    ]
    for position, record in enumerate(records):
        record.repeat = position % 3
    plain = [RequestRecord(r.request_id, "", [1], [2], e2e_s=1.0, repeat=r.repeat) for r in records]
    speed = speedup(Side.of(records, plain), UNITS)
    assert speed is not None
    assert speed.ratio.value < 1
    assert speed.typical.value == pytest.approx(1 / 0.9055, rel=1e-3)
    assert speed.verdict() == FASTER


def test_equal_times_show_no_difference_and_few_prompts_nothing() -> None:
    equal = speedup(side([1.0] * 12, [1.0] * 12), UNITS)
    assert equal is not None
    assert equal.verdict() == NO_DIFFERENCE
    few = speedup(side([0.5, 0.6, 0.7], [1.0] * 3), UNITS)
    assert few is not None
    assert few.verdict() == TOO_FEW


def family(
    speeds: list[float], candidates: list[int], reference: int, noise: float = 0.1
) -> TypicalFamily:
    logs = np.log(speeds) + np.random.default_rng(3).normal(0, noise, (20, len(speeds)))
    return TypicalFamily(logs, np.ones(20), candidates, [False] * len(speeds), reference)


def test_a_table_asks_for_more_the_more_it_compares() -> None:
    errors = [family([1.0] * n, list(range(n)), 0).limits().shown for n in (2, 3, 8)]
    assert errors[0] == limit_of_one(20)
    assert errors[0] < errors[1] < errors[2] < 3.5


def test_a_reference_that_was_fixed_costs_less_than_one_chosen_by_the_data() -> None:
    assert (
        family([1.0] * 8, [0], 0).limits().shown
        < family([1.0] * 8, list(range(8)), 0).limits().shown
    )


def test_many_units_go_by_a_part_of_their_pairs() -> None:
    """The interval of twenty thousand units is that of the normal distribution around their common ratio."""
    logs = RNG.normal(0.01, 0.1, 20_000)
    typical = Typical.of(logs)
    assert typical is not None
    assert len(typical.pair_means) < 600_000
    low, high = np.log(typical.interval() or (0.0, 0.0))
    half = 1.96 * 0.1 / np.sqrt(20_000) * np.sqrt(np.pi / 3)
    assert np.array([low, high]) == pytest.approx(logs.mean() + np.array([-half, half]), abs=5e-4)
    assert typical.deviation > limit_of_one(20_000) == pytest.approx(1.96, abs=0.001)
    speeds = RNG.normal(0, 0.1, (20_000, 3))
    assert (
        2 < TypicalFamily(speeds, np.ones(20_000), [0, 1, 2], [False] * 3, 0).limits().shown < 2.6
    )


def test_methods_without_a_time_show_nothing() -> None:
    absent = np.full((30, 3), np.nan)
    assert TypicalFamily(
        absent, np.zeros(30), [0, 1, 2], [True] * 3, 0
    ).limits().shown == limit_of_one(1)


def test_units_of_other_tables_change_nothing() -> None:
    small = family([1.0] * 4, list(range(4)), 0)
    absent = np.full((30, 4), np.nan)
    larger = TypicalFamily(
        np.concatenate([absent, small.speeds]),
        np.ones(50),
        small.candidates,
        small.has_baseline,
        small.reference,
    )
    assert larger.limits().shown == small.limits().shown


def test_what_is_shown_is_set_aside() -> None:
    """Six methods that are far behind leave one comparison, whose limit is that of a single one."""
    assert family([1.5, 1.48, *[1.0] * 6], list(range(8)), 0).limits().shown == limit_of_one(20)


def test_a_table_shows_what_exceeds_the_largest_deviation_of_equal_methods_from_their_baselines() -> (
    None
):
    """The limit for many methods is that of the farthest of them in each shuffle, not of their average."""
    logs = np.random.default_rng(3).normal(0, 0.1, (20, 8))

    def limit_of(methods: int) -> float:
        return TypicalFamily(logs[:, :methods], np.ones(20), [], [True] * methods).limits().shown

    assert limit_of(1) == limit_of_one(20)
    assert limit_of(1) < limit_of(2) < limit_of(4) < limit_of(8) < 3.5


def test_few_tables_of_equal_methods_show_a_difference_from_a_baseline() -> None:
    """Eight equal methods share a baseline: few of 100 tables show a difference, by the level and its deviation."""
    random, false = np.random.default_rng(5), 0
    for _ in range(100):
        times = random.normal(0, 0.1, (12, 9))
        family = TypicalFamily(times[:, 1:] - times[:, :1], np.ones(12), [], [True] * 8)
        limit = family.limits().shown
        deviations = [abs(t.deviation) for t in map(Typical.of, family.speeds.T) if t is not None]
        false += max(deviations) > limit
    assert false <= 11
