"""One run in every form that it is written in: each number and each interval is the same wherever it stands."""

import csv
import html
import re
from pathlib import Path

import pytest
from command_line import skit_here

from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.reports.writing.formatting import interval, significant, times


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A measured run of one method, and what the terminal said of it."""
    out = tmp_path_factory.mktemp("run")
    command = (
        "bench",
        "--method",
        "fixed-k",
        "--target",
        "bundled",
        "--limit",
        7,
        "--max-new-tokens",
        24,
    )
    done = skit_here(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    (folder,) = (file.parent for file in out.glob("*/run.json"))
    return folder, " ".join(done.stdout.split())


@pytest.fixture
def summary(run: tuple[Path, str]) -> RunSummary:
    """The numbers, as programs read them."""
    (loaded,), problems = load_runs([run[0]])
    assert not problems
    return loaded.summary


def text_of(page: Path) -> str:
    """The words of a page, without its markup."""
    content = page.read_text(encoding="utf-8")
    if page.suffix == ".html":
        content = html.unescape(
            re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", content, flags=re.DOTALL)
        )
    return " ".join(content.replace("**", "").split())


def test_the_speedup_and_its_interval_are_the_same_in_every_form(
    run: tuple[Path, str], summary: RunSummary
) -> None:
    folder, terminal = run
    overall = summary.overall
    ends, ends_in_all = overall.bounds("typical_speedup"), overall.bounds("speedup")
    assert ends is not None
    assert ends_in_all is not None
    value = times(overall.typical_speedup)
    headline = f"{value} the speed of autoregressive decoding on a typical prompt (95% interval {interval(ends)})"
    forms = {
        "terminal": terminal,
        "md": text_of(folder / "report.md"),
        "html": text_of(folder / "report.html"),
    }
    for name, text in forms.items():
        assert headline in text, name
        assert f"{value} ({interval(ends)})" in text, name
        # Whatever stands beside a speedup in brackets is its own interval.
        of_value = {value: {interval(ends)}}
        of_value.setdefault(times(overall.speedup), set()).add(interval(ends_in_all))
        for shown, within in re.findall(r"(\d[\d.]*x) \(([\d.]+–[\d.]+)\)", text):
            assert within in of_value.get(shown, {within}), name


def test_tables_for_programs_and_papers_have_the_numbers_of_the_summary(
    run: tuple[Path, str], summary: RunSummary
) -> None:
    folder, _ = run
    overall = summary.overall
    ends = overall.bounds("typical_speedup")
    assert ends is not None
    rows = list(csv.DictReader((folder / "report.csv").read_text(encoding="utf-8").splitlines()))
    (row,) = (row for row in rows if row["method"].startswith("fixed-k"))
    for name, value in (
        ("speedup", overall.speedup),
        ("typical_speedup", overall.typical_speedup),
        ("typical_speedup_low", ends[0]),
        ("typical_speedup_high", ends[1]),
        ("acceptance_length", overall.acceptance_length),
        ("throughput_tok_per_s", overall.throughput),
        ("wdt_s", overall.wdt),
    ):
        assert float(row[name]) == pytest.approx(value, rel=1e-8), name
    paper = (folder / "report.tex").read_text(encoding="utf-8")
    (line,) = (line for line in paper.splitlines() if line.startswith(r"\texttt{fixed-k} &"))
    assert f"{significant(overall.typical_speedup)}}}" in line
    assert f"[{interval(ends).replace('–', '--')}]" in line
