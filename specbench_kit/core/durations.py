"""Durations that a user states: with a unit, or as a few seconds without one."""

from specbench_kit.core.errors import require

LONGEST_BARE_S = 10.0
"""Seconds from which on a number without a unit may have been meant as milliseconds."""


def require_unit(option: str, number: str, unit: str) -> None:
    """Raise SkitError for a large number without its unit, which would be taken for seconds.

    `option` is what holds the number, as the user wrote it.
    """
    require(
        bool(unit) or abs(float(number)) < LONGEST_BARE_S,
        f"{option} states no unit: write {number}ms or {number}s",
    )
