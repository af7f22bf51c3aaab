"""Intervals that cover how far apart processes are."""

from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest
from scipy.stats import t as students_t

from benchmarks.calibration import Lasting, Scene
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.paired import Side, process_spread, relative_speed, speedup
from specbench_kit.metrics.statistics import Array, range_of_equals
from specbench_kit.metrics.typical import ProcessSpread
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE

UNITS = {str(number): number for number in range(8)}
LENGTHS_S = np.linspace(1, 4, 8)


def records(factors: Array) -> list[RequestRecord]:
    """Return the requests of a method that takes `factors` [processes, prompts] times the lengths."""
    return [
        RequestRecord(
            name, "", [1], [2], repeat=process, e2e_s=float(LENGTHS_S[number] * factor[number])
        )
        for process, factor in enumerate(factors)
        for name, number in UNITS.items()
    ]


def constant(*by_process: float) -> Array:
    return np.outer(by_process, np.ones(8))


def test_the_spread_by_hand() -> None:
    """One of two methods is 4% faster in one of two processes: each residual is a quarter of that."""
    logs = np.zeros((2, 2, 8))
    logs[1, 1] = 0.04
    spread = ProcessSpread.of(logs)
    assert spread is not None
    assert (spread.freedom, spread.processes) == (1, 2)
    assert spread.variance == pytest.approx(4 * 0.01**2)
    assert spread.standard_error == pytest.approx(0.02)
    assert spread.half_width() == pytest.approx(students_t.ppf(0.975, 1) * 0.02)
    low, high = spread.widen(1.5, [1.5 * np.exp(-0.3), 1.5 * np.exp(0.1)])
    assert -np.log(low / 1.5) == pytest.approx(np.hypot(0.3, spread.half_width()))
    assert np.log(high / 1.5) == pytest.approx(np.hypot(0.1, spread.half_width()))


def test_what_all_methods_or_all_processes_share_is_no_spread() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 1, (1, 3, 1)) + rng.normal(0, 1, (4, 1, 8))
    spread = ProcessSpread.of(logs)
    assert spread is not None
    assert spread.freedom == 6
    assert spread.variance == pytest.approx(0, abs=1e-20)


def test_processes_that_methods_do_not_share_count_whole() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.1, (1, 3, 1)) + np.zeros((4, 3, 8))
    apart = ProcessSpread.of(shared, apart=True)
    assert apart is not None
    assert apart.freedom == 8
    assert apart.variance == pytest.approx(float(shared[0, :, 0].var(ddof=1)))


def test_one_process_or_too_few_prompts_of_all_show_nothing() -> None:
    assert ProcessSpread.of(np.zeros((3, 1, 8))) is None
    missing = np.zeros((3, 2, 8))
    missing[1, 1, :3] = np.nan
    assert ProcessSpread.of(missing) is None


def test_a_method_that_is_faster_in_some_processes_only_is_not_called_faster() -> None:
    """Within each process all prompts agree, so that without the spread any difference would be shown."""
    rng = np.random.default_rng(2)
    noise = np.exp(rng.normal(0, 1e-4, (3, 8)))
    plain = records(constant(1, 1, 1))
    moved = Side.of(records(constant(0.97, 0.96, 1.02) * noise), plain)
    steady = Side.of(records(constant(0.7, 0.7, 0.7) * noise[::-1]), plain)
    sides = [Side.of(plain, plain), moved, steady]
    spread = process_spread(sides, UNITS, 3)
    assert process_spread([replace(side, is_measured=False) for side in sides], UNITS, 3) is None, (
        "modelled"
    )
    verdicts = [
        speed.verdict() if speed else ""
        for speed in (speedup(moved, UNITS), speedup(moved, UNITS, spread))
    ]
    assert verdicts == [FASTER, NO_DIFFERENCE]
    by_far = relative_speed(steady, moved, UNITS, spread)
    assert by_far is not None
    assert by_far.verdict() == FASTER
    assert by_far.typical_upper_bound() > relative_speed(steady, moved, UNITS).typical_upper_bound()


def test_requests_that_no_method_has_finished_count_for_nothing() -> None:
    plain = records(constant(1, 1))
    own = Side.of(records(constant(0.9, 0.8)), plain)
    finished_units = {name: number for name, number in UNITS.items() if number < 6}
    spread = process_spread([Side.of(plain, plain), own], finished_units, 2)
    assert spread is not None
    assert spread.variance == pytest.approx(4 * (np.log(0.9 / 0.8) / 4) ** 2)


def test_baselines_of_their_own_are_of_other_processes() -> None:
    ratios = constant(1, 1.1, 1.21)
    sides = [
        Side.of(records(0.5 * ratios * scale), records(scale * constant(1, 1, 1)))
        for scale in (1.0, 1.5)
    ]
    spread = process_spread(sides, UNITS, 3)
    assert spread is not None
    assert spread.variance == pytest.approx(np.log(1.1) ** 2), "shared, it would be none"


def test_prompts_that_all_agree_are_widened_too() -> None:
    plain = records(constant(1, 1, 1))
    own = Side.of(records(constant(0.9, 0.9, 1.1)), plain)
    spread = process_spread([Side.of(plain, plain), own], UNITS, 3)
    speed = speedup(own, UNITS, spread)
    assert speed is not None
    assert speed.typical.is_constant
    low, high = speed.typical_interval() or (1, 1)
    assert low < 1 < high
    assert speed.verdict() == NO_DIFFERENCE


def test_the_fastest_of_many_methods_has_to_be_faster_by_more() -> None:
    """A printed table of Tukey's range says 4.60 at 5% for eight methods and 30 degrees of freedom."""
    assert range_of_equals(0.95, 2, 4) == pytest.approx(students_t.ppf(0.975, 4))
    assert range_of_equals(0.95, 8, 30) * np.sqrt(2) == pytest.approx(4.60, abs=0.005)
    logs = np.random.default_rng(3).normal(0, 0.01, (9, 5, 1)) + np.zeros((9, 5, 8))
    spread = ProcessSpread.of(logs)
    assert spread is not None
    assert (spread.methods, spread.freedom) == (8, 32)
    assert spread.half_width(1.96) == pytest.approx(
        range_of_equals(0.95, 8, 32) * spread.standard_error
    )
    assert spread.half_width() == pytest.approx(students_t.ppf(0.975, 32) * spread.standard_error)


def test_one_process_is_taken_to_differ_by_half_a_percent() -> None:
    plain = records(constant(1))
    sides = {share: Side.of(records(constant(1 - share)), plain) for share in (0.01, 0.02, 0.05)}
    verdicts = {}
    for share, own in sides.items():
        spread = process_spread([Side.of(plain, plain), own], UNITS, 1)
        assert spread is not None
        assert not spread.is_seen
        assert spread.standard_error == pytest.approx(sqrt(2) * 0.005)
        speed = speedup(own, UNITS, spread)
        assert speed is not None
        verdicts[share] = speed.verdict()
        assert speed.typical_interval() == pytest.approx(
            [speed.typical.value * exp(sign * 1.96 * sqrt(2) * 0.005) for sign in (-1, 1)], rel=1e-4
        )
    assert verdicts == {0.01: NO_DIFFERENCE, 0.02: FASTER, 0.05: FASTER}
    # Of eight methods beside a baseline the two that are furthest apart differ by Tukey's 4.286 standard errors of one.
    many = ProcessSpread.assumed(9)
    assert many.half_width(2.0) == pytest.approx(0.04286 / 2, rel=1e-3)
    apart = ProcessSpread.assumed(2, apart=True)
    assert apart.standard_error == pytest.approx(0.01), "each has a baseline of its own process"


def test_processes_are_averaged_and_repeats_in_one_are_not() -> None:
    """One of three passes is slower by a half: a mean says so, and a median leaves it out."""
    plain = records(constant(1, 1, 1))
    own = Side.of(records(constant(1, 1, 1.5)), plain)
    alone, spread = speedup(own, UNITS), process_spread([Side.of(plain, plain), own], UNITS, 3)
    together = speedup(own, UNITS, spread)
    assert alone is not None
    assert together is not None
    assert (alone.typical.value, together.typical.value) == pytest.approx((1, 1.5 ** (-1 / 3)))


def test_verdicts_hold_their_level_under_offsets_that_last_as_long_as_a_process() -> None:
    """If 5% of verdicts are false, more than 15 of 120 are false in one case of a thousand."""
    false, _, hold = Scene("log-normal", 2, 10, lasting=Lasting(0.03, 3, 0.03)).rates(120)
    assert false <= 15 / 120
    assert hold >= 0.9
    uncovered, _, _ = Scene("log-normal", 2, 10, lasting=Lasting(0.03, 1, 0.03)).rates(120)
    assert uncovered > 0.3, "one process does not show it"
