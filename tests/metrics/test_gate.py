"""The gate `slower by 5%`: whom it fails, how often, and when it cannot tell."""

from collections.abc import Sequence

import numpy as np
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord, TimeKind
from specbench_kit.metrics.gate import SlowerGate
from specbench_kit.metrics.result import Comparison, ComparisonTable, MethodSeries
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.rows import Reference, TableEntry, rows_of


def gate(text: str) -> SlowerGate:
    parsed = SlowerGate.parse(text)
    assert parsed is not None
    return parsed


def compared(
    old_s: Sequence[float], new_s: Sequence[float], time_kind: TimeKind = "measured"
) -> Comparison:
    """Return a comparison of two runs of one method, whose baseline took a second for every prompt."""
    units = {str(number): number for number in range(len(old_s))}
    entries = [
        TableEntry(
            RequestGroup(_records(seconds, time_kind)),
            RequestGroup(_records([1.0] * len(seconds), time_kind)),
            units,
            label=label,
        )
        for label, seconds in (("wisp", old_s), ("wisp #2", new_s))
    ]
    rows = rows_of(entries, Reference("wisp", ("wisp",)))
    series = [MethodSeries(label, {}) for label in rows]
    return Comparison(
        series=series, parts=[ComparisonTable("overall", "all requests", rows)], reference="wisp"
    )


def _records(seconds: Sequence[float], time_kind: TimeKind) -> list[RequestRecord]:
    return [
        RequestRecord(str(n), "", [1], [2], e2e_s=float(value), time_kind=time_kind)
        for n, value in enumerate(seconds)
    ]


def drawn(seed: int, prompts: int, loss: float, noise: float = 0.05) -> Comparison:
    rng = np.random.default_rng([seed, prompts])
    old, new = rng.lognormal(-1, noise, (2, prompts))
    return compared(list(old), list(new / (1 - loss)))


def test_equal_versions_seldom_fail_and_a_loss_is_found() -> None:
    """If 5% of equal versions failed, more than 12 of 100 would have p < .002."""
    equal = [gate("slower by 5%").judge(drawn(seed, 40, 0.0)) for seed in range(100)]
    assert sum(bool(result.failed) for result in equal) <= 12
    slower = [gate("slower by 5%").judge(drawn(seed, 40, 0.05)) for seed in range(100)]
    assert sum(bool(result.failed) for result in slower) >= 68


def test_runs_that_are_too_small_say_what_it_takes() -> None:
    result = gate("slower by 5%").judge(drawn(1, 12, 0.0, noise=0.1))
    assert not result.failed
    (line,) = result.too_small
    assert line.startswith("wisp #2: 12 prompts, whose times vary so much, find such a loss in ")
    (few,) = gate("slower by 5%").judge(drawn(1, 4, 0.0)).too_small
    assert few.startswith("wisp #2: 4 prompts say nothing; at least 6 are needed")


def test_the_number_of_prompts_that_it_names_is_enough() -> None:
    """The prompts that a small run asks for find four of five losses, give or take what the small run misjudged."""
    (line,) = gate("slower by 5%").judge(drawn(0, 12, 0.0, noise=0.1)).too_small
    needed = int(line.rpartition("; about ")[2].split()[0])
    assert 30 < needed < 120
    failures = [
        gate("slower by 5%").judge(drawn(seed, 54, 0.05, noise=0.1)).failed for seed in range(100)
    ]
    assert sum(map(bool, failures)) >= 68


def test_modelled_time_tells_at_once() -> None:
    equal_speeds = gate("slower by 5%").judge(compared([0.5] * 8, [0.5] * 8, "modelled"))
    assert (equal_speeds.failed, equal_speeds.too_small) == ([], [])
    (line,) = gate("slower by 5%").judge(compared([0.5] * 8, [0.55] * 8, "modelled")).failed
    assert line == "wisp #2: 0.9091 of the reference's speed, 0.9091 at most (slower by 5%)"


def test_a_small_loss_that_is_sure_passes() -> None:
    """A loss of 1% that many prompts show is nearer to none than to 5%."""
    result = gate("slower by 5%").judge(drawn(0, 400, 0.01, noise=0.02))
    assert (result.failed, result.too_small) == ([], [])


@pytest.mark.parametrize(
    "text", ["slower by 0%", "slower by 100%", "slower by five%", "slower than 5%", "slower"]
)
def test_what_is_no_loss_is_one_line(text: str) -> None:
    with pytest.raises(
        SkitError, match=r"expected a loss between 0% and 100%, as in 'slower by 5%'"
    ):
        SlowerGate.parse(text)


def test_other_conditions_are_none_of_its_business() -> None:
    assert SlowerGate.parse("speedup<0.95") is None
