"""The reports of `results/reference`, as they are in the repository."""

import csv
import importlib
import sys
from typing import Any

import pytest
from documents import ROOT

sys.path.append(str(ROOT / "scripts"))
written_pages: Any = importlib.import_module("written_pages")

REPORTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "results" / "reference").rglob("*")
    if path.suffix in (".md", ".csv", ".json", ".yaml", ".yml", ".jsonl")
)


@pytest.mark.parametrize("name", REPORTS)
def test_a_reference_report_read_everything_that_it_was_made_from(name: str) -> None:
    """A report names a folder that it could not read in a line that begins with NOT READ."""
    assert "NOT READ" not in (ROOT / name).read_text(encoding="utf-8")


def test_the_reports_are_there() -> None:
    assert len(REPORTS) > 50


@pytest.mark.parametrize("page", written_pages.PAGES, ids=lambda page: page.path.parent.name)
def test_numbers_in_written_pages_are_those_of_their_files(page: Any) -> None:
    """A page is older than a file where `python scripts/written_pages.py` was forgotten."""
    assert page.written() == page.path.read_text(encoding="utf-8")


TABLES = [name for name in REPORTS if name.endswith("/report.csv")]
SPEEDS = ("speedup", "typical_speedup", "relative_speed", "typical_relative_speed")


@pytest.mark.parametrize("name", TABLES)
def test_intervals_of_a_reference_report_have_a_width(name: str) -> None:
    """A method that drafts changes the times of prompts by different factors."""
    with (ROOT / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in (row for row in rows if float(row["drafted"] or 0)):
        for metric in SPEEDS:
            value, low, high = (
                row.get(column) or "" for column in (metric, f"{metric}_low", f"{metric}_high")
            )
            if low and abs(float(value) - 1) > 1e-3:
                assert float(high) / float(low) - 1 > 1e-6, (row["method"], metric)
