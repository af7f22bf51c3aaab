"""What `skit bench --method all` prints fits a screen of 40 lines and 80 columns; the report has the rest."""

import re

import pytest
from command_line import environment, skit

from specbench_kit.reports.comparison.terminal import FIRST_ROWS

LINES, COLUMNS = 40, 80


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """The lines on the screen, and the report."""
    out = tmp_path_factory.mktemp("all")
    command = ("bench", "--replay", "qwen2.5-coder", "--method", "all", "--limit", 8, "--out", out)
    ended = skit(*command, env=environment(COLUMNS=str(COLUMNS)))
    assert ended.returncode == 0, ended.stderr
    (report,) = out.glob("*-bench-*/report.md")
    return ended.stdout.splitlines(), report.read_text()


def test_a_first_run_of_all_methods_fits_a_screen(done: tuple[list[str], str]) -> None:
    lines, _ = done
    assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) <= LINES
    # The page that a reader opens comes first.
    assert re.fullmatch(r"report: \S+/report\.html \(as text: report\.md\)", lines[-1])


def test_the_report_has_the_rows_and_the_reasons_that_the_screen_leaves_out(
    done: tuple[list[str], str],
) -> None:
    lines, report = done
    of_screen = [line for line in lines if line.rstrip().endswith("8/8")]
    of_report = [line for line in report.split("## ")[1].splitlines() if line.startswith("| `")]
    assert FIRST_ROWS <= len(of_screen) <= FIRST_ROWS + 1
    (more,) = (line for line in lines if line.endswith(" more rows in the report"))
    first_table = {line.split("`")[1] for line in of_report}
    assert len(first_table) == len(of_screen) + 1 + int(
        more.split()[0]
    )  # and autoregressive decoding
    (left_out,) = (line for line in lines if line.startswith("left out: "))
    assert left_out.endswith(" more; the report says why")
    assert "| left out: `autodraft`, `eagle2-tree`" in report
    assert "a trace holds chains, so a method that drafts trees cannot be replayed" in report
