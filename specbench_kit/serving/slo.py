"""Service levels: the token speeds that devices are promised, and what they leave for a verification."""

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isclose, isfinite

from specbench_kit.core.errors import SkitError

CLASSES: Mapping[str, float] = {"1": 2.0, "2": 4.0, "3": 6.0, "4": 8.0}
"""Tokens per second by WISP's class."""


@dataclass(frozen=True, slots=True)
class SloMix:
    """Token speeds with the share of devices that each is promised to; `names` are their classes."""

    names: tuple[str, ...]
    speeds: tuple[float, ...]
    shares: tuple[float, ...]

    def place(self, fraction: float) -> int:
        """The class of a device that stands at a fraction, from 0 to below 1, of all of them."""
        return min(bisect(list(accumulate(self.shares)), fraction), len(self.shares) - 1)


def parse_slo(text: str) -> SloMix:
    """`4` is one class; `1:0.25,2:0.75` several with their shares; `7.5/s` a speed of one's own instead of a class."""
    parts = [part.partition(":") for part in text.split(",")]
    names = tuple(name.strip() for name, _, _ in parts)
    if len(set(names)) < len(names):
        raise SkitError(f"the SLO '{text}' names a class twice")
    shares = tuple(_share(share, text) if colon else 1.0 for _, colon, share in parts)
    if not isclose(sum(shares), 1, abs_tol=1e-6):
        raise SkitError(f"the shares in the SLO '{text}' must add up to 1, as in 1:0.5,4:0.5; they are {sum(shares):g}")
    return SloMix(names, tuple(_speed(name) for name in names), shares)


def budget_s(expected_tokens: float, speed: float, draft_s: float, network_s: float) -> float:
    """What a round at a promised speed leaves for queue and verification (WISP 4.3)."""
    return expected_tokens / speed - draft_s - network_s


def _speed(name: str) -> float:
    if name in CLASSES:
        return CLASSES[name]
    number, slash, unit = name.partition("/")
    speed = _number(number)
    if not (slash and unit == "s" and speed is not None and speed > 0):
        raise SkitError(
            f"unknown SLO class '{name}'; known: {', '.join(CLASSES)}, or a speed in tokens per second such as 7.5/s"
        )
    return speed


def _share(text: str, whole: str) -> float:
    share = _number(text)
    if share is None or share < 0:
        raise SkitError(f"the SLO '{whole}' needs a share after each colon, as in 1:0.5,4:0.5, not '{text}'")
    return share


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
