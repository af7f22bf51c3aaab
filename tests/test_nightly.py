"""Which cases of a test run at night alone."""

import ast

import pytest
from nightly import ALL_CASES, AT_NIGHT, Cases, cases_at_night, moved_to_the_night


def test_every_test_that_was_moved_to_the_night_exists() -> None:
    missing = []
    for file, tests in moved_to_the_night().items():
        tree = ast.parse((AT_NIGHT.parent / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        missing += [f"{file}::{test}" for test in tests if test not in functions]
    assert not missing


def test_every_entry_names_cases() -> None:
    entries = [cases for tests in moved_to_the_night().values() for cases in tests.values()]
    assert entries
    for entry in entries:
        named = entry["day"] if isinstance(entry, dict) else entry
        assert named == ALL_CASES or (isinstance(named, list) and named)


@pytest.mark.parametrize(
    ("moved", "at_night"),
    [
        (ALL_CASES, {"1", "2", "3"}),
        (["2", "no longer there"], {"2"}),
        ({"day": ["1", "no longer there"]}, {"2", "3"}),
        ({"day": ["no longer there"]}, set()),
    ],
)
def test_a_case_that_nobody_moved_runs_by_day(moved: Cases, at_night: set[str]) -> None:
    assert cases_at_night(moved, ["1", "2", "3"]) == at_night
