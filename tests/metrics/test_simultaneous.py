"""What the verdicts and intervals of a whole table go by: they hold together, whether methods are equal or not."""

from collections.abc import Sequence
from math import exp, log

import numpy as np
import pytest

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.rows import TableEntry, choose_reference, rows_of
from specbench_kit.metrics.simultaneous import TypicalFamily
from specbench_kit.metrics.statistics import LEVEL, Array, Ratio
from specbench_kit.metrics.typical import Typical, limit_of_one
from tests.nightly import nightly_except

PROMPTS = 20
NOISE = 0.1

Lanes = Sequence[int]
"""Which random times each method has; a method with lane 0 has those of the baseline."""
DIFFERENT = tuple(log(1 + 0.1 * place) for place in range(1, 9))
SCENES: dict[str, tuple[Sequence[float], Lanes]] = {
    "equal": ((0.0,) * 8, range(1, 9)),
    "all different": (DIFFERENT, range(1, 9)),
    "half different": ((0.0,) * 4 + DIFFERENT[1:8:2], range(1, 9)),
    "two are the baseline": ((0.0, 0.0, 0.2, 0.3, 0.3, 0.3), (0, 0, 1, 2, 3, 4)),
    "two are one method": ((0.2, 0.2, 0.3, 0.3, 0.4, 0.4), (1, 1, 2, 3, 4, 5)),
}


def speeds_of(
    rng: np.random.Generator, true: Sequence[float], lanes: Lanes, prompts: int = PROMPTS
) -> Array:
    """Return logarithmic speeds relative to the baseline, whose times vary as those of the methods do."""
    noise = rng.normal(0, NOISE, (prompts, 1 + max(lanes)))
    return np.column_stack(
        [noise[:, 0] - noise[:, lane] + own for own, lane in zip(true, lanes, strict=True)]
    )


def all_hold(rng: np.random.Generator, true: Sequence[float], lanes: Lanes) -> bool:
    """Return whether all intervals of a random table hold: of both kinds, with the baseline and with the reference."""
    speeds = speeds_of(rng, true, lanes)
    seconds = rng.lognormal(5, 0.8, PROMPTS)
    own_seconds = seconds[:, None] * np.exp(-speeds)
    reference = int(own_seconds.sum(axis=0).argmin())
    methods = range(len(true))
    limits = TypicalFamily(speeds, seconds, list(methods), [True] * len(true), reference).limits()

    def holds(logs: Array, numerator: Array, denominator: Array, ratio: float) -> bool:
        typical = Typical.of(logs)
        in_all = Ratio.of([numerator], [denominator])
        assert typical is not None
        assert in_all is not None
        pairs = (
            (typical.value, typical.interval(limits.typical)),
            (in_all.value, in_all.interval(limits.level)),
        )
        # Methods with the same times have no interval, and exactly the true ratio.
        bounds = [found or [value * (1 - 1e-9), value * (1 + 1e-9)] for value, found in pairs]
        return all(low <= exp(ratio) <= high for low, high in bounds)

    return all(
        holds(speeds[:, m], seconds, own_seconds[:, m], true[m])
        and (
            m == reference
            or holds(
                speeds[:, m] - speeds[:, reference],
                own_seconds[:, reference],
                own_seconds[:, m],
                true[m] - true[reference],
            )
        )
        for m in methods
    )


@pytest.mark.parametrize(
    "scene", nightly_except(["all different", "two are the baseline"], list(SCENES))
)
def test_all_intervals_of_a_table_hold_together(scene: str) -> None:
    """If they held in 94 % of tables, fewer than 50 of 60 would come about once in a thousand times."""
    rng = np.random.default_rng(8)
    assert sum(all_hold(rng, *SCENES[scene]) for _ in range(60)) >= 50


def test_intervals_do_not_shrink_where_all_differences_are_shown() -> None:
    """Verdicts set aside what is shown, until a single comparison is left; intervals stay those of eight methods."""
    rng = np.random.default_rng(3)
    speeds = speeds_of(rng, DIFFERENT, range(1, 9))
    reference = int(np.exp(-speeds).sum(axis=0).argmin())
    limits = TypicalFamily(speeds, np.ones(PROMPTS), list(range(8)), [True] * 8, reference).limits()
    assert limits.shown < 2.3
    assert limits.typical > 2.6
    assert limits.level > 0.99


def test_a_single_comparison_has_plain_intervals() -> None:
    speeds = speeds_of(np.random.default_rng(4), [0.3], [1])
    limits = TypicalFamily(speeds, np.ones(PROMPTS), [0], [True], 0).limits()
    assert limits.shown == limits.typical == limit_of_one(PROMPTS)
    assert limits.level == LEVEL


def entry(name: str, seconds: Array, baseline: Sequence[RequestRecord] = ()) -> TableEntry:
    records = [
        RequestRecord(str(n), "", [1], [2], e2e_s=float(own)) for n, own in enumerate(seconds)
    ]
    units = {str(n): n for n in range(PROMPTS)}
    sides = RequestGroup(records), RequestGroup(baseline)
    return TableEntry(*sides, units, label=name, is_baseline=not baseline)


def bounds_beside(*tied: str) -> dict[str, list[float] | None]:
    """Return intervals of two methods in a table that also has some with exactly the baseline's times."""
    rng = np.random.default_rng(6)
    plain = rng.lognormal(0, 0.5, PROMPTS)
    entries = [entry("plain", plain)]
    baseline = entries[0].records
    entries += [entry("slow", plain * np.exp(rng.normal(0.6, 0.1, PROMPTS)), baseline)]
    entries += [entry("fast", plain * np.exp(rng.normal(-0.5, 0.1, PROMPTS)), baseline)]
    entries += [entry(name, plain, baseline) for name in tied]
    rows = rows_of(entries, choose_reference(entries))
    return {
        f"{name} {metric}": rows[name].bounds(metric)
        for name, metric in [
            ("slow", "speedup"),
            ("slow", "typical_speedup"),
            ("fast", "typical_speedup"),
        ]
    } | {"slow against fast": rows["slow"].bounds("typical_relative_speed")}


def test_methods_with_the_baselines_times_change_no_other_interval() -> None:
    """Their ratio is 1 whatever the noise is, so that they cannot shrink what the others are allowed."""
    alone = bounds_beside()
    beside = bounds_beside("never drafts", "does not draft either")
    for name, bounds in alone.items():
        others = beside[name]
        assert bounds is not None
        assert others is not None
        width, other_width = (log(high / low) for low, high in (bounds, others))
        assert width > 0.05, name
        assert other_width == pytest.approx(width, rel=0.12), name
        assert other_width > 0.99 * width, name
