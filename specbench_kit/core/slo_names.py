"""The names of service level objectives: WISP's classes, or speeds in tokens per second, and how
they are said.
"""

import re
from collections.abc import Mapping

CLASSES: Mapping[str, float] = {"class-1": 2.0, "class-2": 4.0, "class-3": 6.0, "class-4": 8.0}
"""Tokens per second of WISP's classes."""
NUMBERED: Mapping[str, float] = {
    name.removeprefix("class-"): speed for name, speed in CLASSES.items()
}
"""The classes as results of earlier versions and the suite's file name them; options never hold
such a name.
"""
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_SPEED = re.compile(r"(\d+\.?\d*|\.\d+)\s*(?:tok|tokens?)?/s")


def speed_of(name: str) -> float | None:
    """Return the tokens per second of a class, or of a speed such as 7.5/s or 8tok/s; None for
    anything else.
    """
    if name in CLASSES or name in NUMBERED:
        return CLASSES.get(name) or NUMBERED[name]
    speed = float(found[1]) if (found := _SPEED.fullmatch(name)) else 0.0
    return speed if speed > 0 else None


def slo_of_option(text: str) -> str:
    """Return the SLO that an option states as results name it, where a bare number is tokens per
    second: 4 as 4/s.
    """
    parts = []
    for part in text.split(","):
        name, colon, share = part.partition(":")
        name = name.strip()
        parts.append(
            f"{name}/s{colon}{share}" if _NUMBER.fullmatch(name) else f"{name}{colon}{share}"
        )
    return ",".join(parts)


def slo_in_words(text: str) -> str:
    """Return the promised speeds of an SLO, each with the share of the devices that it is promised
    to, if not all.
    """
    parts = []
    for part in text.split(","):
        name, colon, share = part.partition(":")
        speed = speed_of(name.strip())
        words = f"{speed:g} tokens/s" if speed else name
        parts.append(f"{words} for {float(share):.0%}" if colon and float(share) != 1 else words)
    return ", ".join(parts)
