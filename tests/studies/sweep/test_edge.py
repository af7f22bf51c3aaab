"""Where a sweep finds that drafting at the edge stops to beat the same method beside the target."""

import csv
from pathlib import Path

import pytest
from command_line import read_object, skit_here
from report_builders import make_row
from trace_builders import made_requests, write_trace

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.reports.sections.colocation import WINDOWS
from specbench_kit.studies.sweep.kind import table_row
from specbench_kit.studies.sweep.summary import SweepRow

pytestmark = [pytest.mark.slow, pytest.mark.figures]

BOARD = """
name = "board"
description = "A fast board drafts for a slow server."
source = "made up"
[drafter]
device = "board"
coefficients = { form = "context", alpha_s = 0, gamma_s = 0, delta_s = 1e-3 }
[colocated]
device = "server"
coefficients = { form = "context", alpha_s = 0, gamma_s = 0, delta_s = 6e-3 }
[verifier]
device = "server"
coefficients = { form = "context", alpha_s = 0, gamma_s = 0, delta_s = 30e-3 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_trace(folder / "t.parquet", made_requests(6))
    (folder / "board.toml").write_text(BOARD)
    options = [
        "--replay",
        folder / "t.parquet",
        "--deployment",
        folder / "board.toml",
        "--out",
        folder / "results",
    ]
    done = skit_here(
        "sweep", "--method", "fixed-k:k=4", *options, "--set", "link.rtt_s=0.001,0.03,0.1"
    )
    assert done.returncode == 0, done.stderr
    assert (
        "fixed-k:k=4 at the edge stops beating itself server-only at round trip = " in done.stdout
    )
    (sweep,) = (folder / "results").iterdir()
    return sweep


def rows(folder: Path) -> list[JsonObject]:
    return [
        row["overall"]
        for row in read_object(folder / "summary.json")["rows"]
        if row["spec"] == "fixed-k:k=4"
    ]


def test_the_crossing_lies_where_the_closed_form_says(folder: Path) -> None:
    """4 tokens at 5 ms less, over R / (R - 1): the same window at every point, which the crossing on the grid nears."""
    windows = [row["rtt_window_s"] for row in rows(folder)]
    assert windows == pytest.approx([windows[0]] * 3)
    assert 0.02 < windows[0] < 0.022
    (edge,) = read_object(folder / "summary.json")["edge"]
    (crossing,) = edge["crossings"]
    assert (crossing["low"], crossing["high"], crossing["stops"]) == (0.001, 0.03, True)
    assert [row["colocated_ratio"] > 1 for row in rows(folder)] == [True, False, False]


def test_report_and_figure_show_both(folder: Path) -> None:
    report = (folder / "report.md").read_text()
    assert "## Edge or server-only" in report
    assert "| `fixed-k:k=4` | below |" in report
    assert "`skit plan` therefore finds a smaller gain" in report
    figure = (folder / "plots" / "speedup.svg").read_text()
    assert "fixed-k:k=4, server-only" in figure
    assert "edge and server-only break even" in figure


def test_the_table_gives_no_window_of_rounds_that_depend_on_the_link(folder: Path) -> None:
    row = SweepRow({}, "fixed-k", "fixed-k:k=4", make_row(rtt_window_s=0.02))
    assert table_row(row)["rtt_window_s"] == 0.02
    ahead = SweepRow({}, "measured-link", "measured-link:max_draft=8", row.overall)
    given = table_row(ahead)
    assert [given[name] for name in WINDOWS] == [None] * len(WINDOWS)
    with (folder / "sweep.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["method"] == "fixed-k:k=4"]
    assert [float(line["rtt_window_s"]) > 0 for line in lines] == [True] * 3
