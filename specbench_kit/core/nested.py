"""Flatten nested JSON objects."""

from collections.abc import Mapping
from typing import Any


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `{"a.b": 1}` for `{"a": {"b": 1}}`: every value that is not an object, by its dotted name."""
    values: dict[str, Any] = {}
    for name, value in content.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values
