"""TOML files and the checks that devices, architectures and profiles share."""

import tomllib
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError, did_you_mean

Fields = Mapping[str, Any]


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SkitError(f"{path} is not valid TOML: {error}") from error


def names_a_file(name: str) -> bool:
    """Whether a name on the command line is the path of a TOML file."""
    return name.endswith(".toml")


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> SkitError:
    """The error for a name that stands for nothing."""
    choices = list(known)
    guess = did_you_mean(name.lower(), choices)
    return SkitError(f"unknown {kind} '{name}'{guess}; known: {', '.join(choices)}{hint}")


def require_keys(fields: Fields, wanted: Iterable[str], allowed: Iterable[str], place: str) -> None:
    """Refuse a table that lacks a wanted key or has one that is not allowed."""
    if missing := [key for key in wanted if key not in fields]:
        raise SkitError(f"{place} lacks {', '.join(missing)}")
    if foreign := sorted(set(fields) - set(allowed)):
        raise SkitError(f"{place} has unknown keys: {', '.join(foreign)}; known: {', '.join(allowed)}")


def require_numbers(fields: Fields, place: str, least: float = 0.0) -> None:
    """Refuse numbers that are not finite or too low, and anything that is no number."""
    for key, value in fields.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not isfinite(value):
            raise SkitError(f"{place}: {key} must be a finite number, not {value!r}")
        if value < least:
            raise SkitError(f"{place}: {key} must be at least {least:g}, not {value:g}")
