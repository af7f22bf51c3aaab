"""Why answers differ in length, as the reports of a known pair say it."""

import shutil
from pathlib import Path

import pytest
from command_line import skit_here

PAIR = Path(__file__).parents[3] / "results" / "reference" / "pair"


@pytest.mark.parametrize(
    ("report", "reason"),
    [("sampled", "they were sampled"), ("fly", "verification is lossy")],
)
def test_a_report_says_why_answers_differ_in_length(
    report: str, reason: str, tmp_path: Path
) -> None:
    shutil.copy(PAIR / report / "result.json.xz", tmp_path)
    done = skit_here("report", tmp_path, "--format", "md")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"ANSWERS DIFFER IN LENGTH: {reason}, so that" in page
