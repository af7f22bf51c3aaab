"""Distributions of lengths."""

import numpy as np
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.lengths import LogNormalLengths, longest, parse_lengths, shortest


def test_a_log_normal_has_the_mean_and_spread_that_it_is_given() -> None:
    drawn = LogNormalLengths(90, 0.62).sample((np.arange(20_000) + 0.5) / 20_000)
    assert drawn.mean() == pytest.approx(90, rel=0.005)
    assert drawn.std() / drawn.mean() == pytest.approx(0.62, rel=0.01)
    assert drawn.min() >= 1


def test_lengths_are_read_from_text() -> None:
    assert parse_lengths("250") == parse_lengths(250) == 250
    lengths = parse_lengths("lognormal:mean=90,cv=0.62")
    assert lengths == LogNormalLengths(90, 0.62)
    assert longest(lengths) == pytest.approx(
        90 / np.sqrt(1.3844) * np.exp(3.0902 * np.sqrt(np.log(1.3844))), abs=1
    )


def test_no_length_is_below_1_token() -> None:
    lengths = parse_lengths("lognormal:mean=1,cv=1")
    assert (shortest(lengths), shortest(250)) == (1, 250)
    assert isinstance(lengths, LogNormalLengths)
    assert lengths.sample(np.array([0.0, 0.5])).min() == 1


@pytest.mark.parametrize(
    "text",
    ["long", "5:6", "lognormal:mean=0,cv=1", "lognormal:mean=0.9,cv=1", "lognormal:mean=9,cv=0"],
)
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(SkitError, match=r"length is a number|mean must be at least 1"):
        parse_lengths(text)
