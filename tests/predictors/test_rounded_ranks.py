"""A table of ranks may be made of few tokens, whose shares are all rounded up."""

from tiny_predictors import PAIR

from specbench_kit.predictors.ranks import DIGITS, RankTable, count_ranks

TOKENS = 26
"""A 26th, to six places, is so much too large that 26 of them exceed 1 by 0.000012."""


def test_shares_that_are_rounded_up_are_still_probabilities() -> None:
    shares, _ = count_ranks([list(range(TOKENS))], 1)
    rounded = tuple(round(share, DIGITS) for share in shares)
    assert sum(rounded) > 1 + 1e-5
    assert RankTable(PAIR, 0.0, rounded, (rounded,), TOKENS).shares == rounded
