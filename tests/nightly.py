"""Which cases of a test run before every change, and which only every night."""

import tomllib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet


def nightly_except(kept: Collection[object], cases: Iterable[object]) -> list[ParameterSet]:
    """Return all cases as parameters of a test; those that are not `kept` run in `make test-all` alone.

    A case is a value or a tuple of values. What is kept exercises every line and every rule that the others exercise.
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    assert not unknown, f"no cases: {unknown}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.nightly,
        )
        for case in cases
    ]


AT_NIGHT = Path(__file__).with_name("at_night.toml")
ALL_CASES = "all"

Cases = str | list[str] | dict[str, list[str]]
"""`ALL_CASES`, a list of cases that run at night, or those that run by day under `day`."""


@cache
def moved_to_the_night() -> dict[str, dict[str, Cases]]:
    """Return the cases of tests/at_night.toml by file and test; its first lines tell the rule."""
    return tomllib.loads(AT_NIGHT.read_text(encoding="utf-8"))


def mark_what_was_moved(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of tests/at_night.toml as nightly."""
    moved = moved_to_the_night()
    tests: dict[tuple[str, str], dict[str, pytest.Item]] = {}
    for item in items:
        file = item.path.relative_to(AT_NIGHT.parent).as_posix()
        name, _, case = item.name.partition("[")
        if name in moved.get(file, ()):
            tests.setdefault((file, name), {})[case.removesuffix("]")] = item
    for (file, name), cases in tests.items():
        for case in cases_at_night(moved[file][name], cases):
            cases[case].add_marker(pytest.mark.nightly)


def cases_at_night(moved: Cases, cases: Collection[str]) -> set[str]:
    """Return which of a test's cases run at night.

    A test of which no case that runs by day is left, since their names have changed, keeps all.
    """
    if moved == ALL_CASES:
        return set(cases)
    if isinstance(moved, dict):
        by_day = set(moved["day"]) & set(cases)
        return set(cases) - by_day if by_day else set()
    return set(moved) & set(cases)
