"""Numbers as people read them: three significant digits, a unit, and a dash where there is no
value.
"""

from collections.abc import Sequence

ABSENT = "–"


def significant(value: float | None, digits: int = 3) -> str:
    """Return the value to `digits` significant digits, without an exponent: 0.0123, 1.23,
    12,345.
    """
    if value is None:
        return ABSENT
    # Of the rounded value, which may reach the next power of ten: 0.9996 is 1.00 and not 1.000.
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def count(value: float | None) -> str:
    """Return a whole number with separators: 12,345."""
    return ABSENT if value is None else f"{value:,.0f}"


def seconds(value: float | None, digits: int = 3) -> str:
    """Return a duration to `digits` significant digits in the unit that suits it: s, ms, µs or
    ns.
    """
    if value is None:
        return ABSENT
    rounded = abs(float(f"{value:.{digits - 1}e}"))
    for limit, scale, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if rounded >= limit or value == 0:
            return f"{significant(value * scale, digits) if value else 0} {unit}"
    return f"{significant(value * 1e9, digits)} ns"


def data(value: float | None) -> str:
    """Return a number of bytes in B, kB or MB, of 1,000 each."""
    if value is None:
        return ABSENT
    rounded = abs(float(f"{value:.2e}"))
    for limit, unit in ((1e6, "MB"), (1e3, "kB")):
        if rounded >= limit:
            return f"{significant(value / limit)} {unit}"
    return f"{significant(value) if value else 0} B"


def share(value: float | None) -> str:
    """Return a fraction as a percentage with one decimal: 32.7%."""
    return ABSENT if value is None else f"{100 * value:.1f}%"


def rate(value: float | None) -> str:
    """Return a rate in tokens per second: 33.0 tok/s."""
    return ABSENT if value is None else f"{significant(value)} tok/s"


def times(value: float | None) -> str:
    """Return a factor: 1.62x."""
    return ABSENT if value is None else f"{significant(value)}x"


def interval(bounds: Sequence[float] | None) -> str:
    """Return both ends of an interval with as many digits as tell them apart, one if none do:
    1.55–1.70.
    """
    if bounds is None:
        return ABSENT
    for digits in range(3, 7):
        low, high = (significant(bound, digits) for bound in bounds)
        if low != high:
            return f"{low}–{high}"
    return significant(bounds[0])


def span(low: str, high: str) -> str:
    """Return the ends of a range, as they are written, or one of them where they read the same: 48
    to 60.
    """
    return low if low == high else f"{low} to {high}"


def shorten_head(text: str, limit: int) -> str:
    """Return the last `limit` characters, after an ellipsis if some were cut."""
    return text if len(text) <= limit else f"…{text[-limit:]}"


def shorten_tail(text: str, limit: int) -> str:
    """Return the first `limit` characters, before an ellipsis if some were cut."""
    return text if len(text) <= limit else f"{text[:limit]}…"
