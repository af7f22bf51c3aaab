"""What the interval of a speed ratio over some prompts shows, in words."""

from collections.abc import Sequence

FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference shown"
TOO_FEW = "too few prompts to tell"
FEWEST_PROMPTS = 6
"""Fewer cannot show a difference with 95% confidence even if every one of them goes the same way (2 x 0.5^5 > 5%)."""


def verdict(bounds: Sequence[float] | None, prompts: int) -> str:
    """What the interval of a ratio of times over that many prompts shows."""
    if bounds is None or prompts < FEWEST_PROMPTS:
        return TOO_FEW
    if bounds[0] > 1:
        return FASTER
    return SLOWER if bounds[1] < 1 else NO_DIFFERENCE
