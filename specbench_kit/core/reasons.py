"""Groups the names of what cannot be done by the reason, so that a reason that many share is printed once."""

from collections.abc import Mapping


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that share each reason, in the order of their first occurrence."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return names
