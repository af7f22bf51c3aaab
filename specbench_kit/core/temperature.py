"""The temperatures that tokens can be sampled at."""

from math import isfinite

from specbench_kit.core.errors import require

LEAST_TEMPERATURE = 1e-6
"""Logits divided by less leave the range of 32-bit numbers; long before, only exact ties are left
to chance.
"""


def require_temperature(temperature: float, name: str = "--temperature") -> None:
    """Raise SkitError unless a temperature is 0, which is greedy decoding, or one that logits can
    be divided by.
    """
    require(
        isfinite(temperature) and temperature >= 0,
        f"{name} must be a number from 0 up, not {temperature}",
    )
    require(
        temperature == 0 or temperature >= LEAST_TEMPERATURE,
        f"{name} {temperature:g} is too small to compute with: the smallest is {LEAST_TEMPERATURE:g}, and 0 decodes "
        "greedily",
    )
