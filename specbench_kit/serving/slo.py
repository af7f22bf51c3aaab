"""Service level objectives: the token speeds promised to devices, and the time they leave for a
verification.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from math import isclose, isfinite

from specbench_kit.core.errors import SkitError
from specbench_kit.core.slo_names import CLASSES, speed_of


@dataclass(frozen=True, slots=True)
class SloMix:
    """Promised token speeds, the share of devices with each, and the names of the classes."""

    names: tuple[str, ...]
    speeds: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def mean_speed(self) -> float:
        """The promised tokens per second of a device on average."""
        return sum(speed * share for speed, share in zip(self.speeds, self.shares, strict=True))

    def class_index(self, fraction: float) -> int:
        """Return the class of the device at `fraction` (from 0 to below 1) of all devices."""
        return min(bisect(list(accumulate(self.shares)), fraction), len(self.shares) - 1)


def parse_slo(text: str) -> SloMix:
    """Return the mix that a text names.

    `class-4` is one class, `class-1:0.25,class-2:0.75` are several with their shares, `7.5tok/s` is a speed in place of
    a class. In results of earlier versions and in the suite's file a bare number is a class; that of an option is a
    speed, which `slo_of_option` writes as one.
    """
    parts = [part.partition(":") for part in text.split(",")]
    names = tuple(name.strip() for name, _, _ in parts)
    if len(set(names)) < len(names):
        raise SkitError(f"the SLO '{text}' names a class twice")
    shares = []
    for _, colon, number in parts:
        share = _number(number) if colon else 1.0
        if share is None or share < 0:
            raise SkitError(
                f"the SLO '{text}' needs a share after each colon, as in 4/s:0.5,8/s:0.5, not '{number}'"
            )
        shares.append(share)
    if not isclose(sum(shares), 1, abs_tol=1e-6):
        raise SkitError(
            f"the shares in the SLO '{text}' must add up to 1, as in 4/s:0.5,8/s:0.5; they are {sum(shares):g}"
        )
    return SloMix(names, tuple(map(_speed, names)), tuple(shares))


def verification_budget_s(
    expected_tokens: float, speed: float, draft_s: float, network_s: float
) -> float:
    """Return the seconds that a round at a promised speed leaves for queueing and verification
    (WISP 4.3).
    """
    return expected_tokens / speed - draft_s - network_s


def _speed(name: str) -> float:
    speed = speed_of(name)
    if speed is None:
        known = ", ".join(f"{known} ({speed:g} tokens/s)" for known, speed in CLASSES.items())
        raise SkitError(f"unknown SLO '{name}'; give a speed such as 7.5tok/s, or a class: {known}")
    return speed


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
