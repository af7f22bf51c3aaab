"""What docs/artefact.md tells a reviewer to expect: committed files, which say what the page says."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from documents import ROOT

PAGE = ROOT / "docs" / "artefact.md"
CODE = re.compile(r"`([^`]+)`")
FIGURE = re.compile(r"\d+(?:\.\d+)?(?:x\b|%)|\d+(?:/| of )\d+")
"""What ages: factors, shares, and counts of several."""
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| claim", "| ---"))
]


def cited(expected: str) -> list[Path]:
    """Return the committed files that a cell names."""
    return [
        ROOT / text
        for text in CODE.findall(expected)
        if text.startswith(("results/", "specbench_kit/"))
    ]


def options(command: str) -> set[tuple[str, ...]]:
    """Return a command's options with their values, but for the folder that it writes into."""
    words = shlex.split(command)
    pairs = {(name, value) for name, value in pairwise(words) if name.startswith("--")}
    return {tuple(words[:2]), *(pair for pair in pairs if pair[0] != "--out")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_to_expect_is_in_a_committed_file(row: list[str]) -> None:
    """A figure or a quoted text that the page gives stands in one of the files that the same row names."""
    claim, _, _, expected = row
    files = cited(expected)
    assert [path for path in files if not path.is_file()] == []
    contents = [path.read_text(encoding="utf-8") for path in files]
    quoted = [text for text in CODE.findall(expected) if FIGURE.search(text)]
    for figure in quoted + FIGURE.findall(expected):
        assert any(figure in content for content in contents), (
            f"{claim}: {figure} is in none of {files}"
        )


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "report.md" in row[3]], ids=lambda row: row[0]
)
def test_a_committed_report_was_made_by_the_command_of_its_row(row: list[str]) -> None:
    (report,) = cited(row[3])
    recorded = re.findall(r"^skit .*", report.read_text(encoding="utf-8"), re.MULTILINE)
    assert options(CODE.findall(row[1])[0]) in map(options, recorded)


def test_some_rows_name_committed_files() -> None:
    assert sum(bool(cited(row[3])) for row in ROWS) >= 4
