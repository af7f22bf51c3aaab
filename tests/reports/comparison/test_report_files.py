"""Reports as files: every format of one run and of several, the same each time."""

import csv
import re
import shutil
import subprocess
from dataclasses import replace
from io import StringIO
from typing import get_type_hints

import pytest
from PIL import Image
from report_builders import autoregressive_like, comparison_of, make_run, simulate_chain, summary_of
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.timeline import Span, Timeline
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports import render_latex
from specbench_kit.reports.comparison.files import write_reports
from specbench_kit.reports.comparison.report import Look, parse_columns, short_names
from specbench_kit.reports.comparison.tables import to_csv, to_latex
from specbench_kit.reports.document import Table
from specbench_kit.reports.render_latex import latex
from specbench_kit.reports.sections.columns import COLUMNS
from specbench_kit.reports.timeline.timeline import write_pictures
from specbench_kit.reports.writing.drawing import Picture, draw, name_points, new_figure
from specbench_kit.studies.reporting.command import ComparisonOptions

FIGURES = {
    "speedup",
    "pareto",
    "acceptance_by_position",
    "draft_length",
    "wasted_drafting",
    "phases",
    "itl",
}


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, write_reports(comparison, folder)


@pytest.fixture
def run(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    return write_run(tmp_path, "wisp", records, in_turn(plain(records)))


def test_every_format_is_written_and_listed(report):
    folder, written = report
    pages = {"report.md", "report.html", "report.csv", "report.tex"}
    plots = {f"plots/{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg")}
    assert {path.relative_to(folder).as_posix() for path in written} == pages | plots | {
        "result.json"
    }
    assert all(path.stat().st_size for path in written)


def test_only_what_is_asked_for_is_written(comparison, tmp_path):
    assert [path.name for path in write_reports(comparison, tmp_path / "a", ["csv"])] == [
        "report.csv"
    ]
    assert [path.name for path in write_reports(comparison, tmp_path / "b", ["html"])] == [
        "report.html"
    ]
    assert not (tmp_path / "b" / "plots").exists()
    assert (tmp_path / "b" / "report.html").read_text().count("<figure") == len(FIGURES)
    with pytest.raises(
        SkitError,
        match="unknown report format 'doc'; known: md, html, csv, latex, json, png, svg, pdf",
    ):
        write_reports(comparison, tmp_path, ["md", "doc"])


def test_markdown_alone_points_to_no_picture(comparison, tmp_path):
    write_reports(comparison, tmp_path, ["md", "html"])
    assert "![" not in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.html").read_text().count("<figure") == len(FIGURES)


def test_the_same_runs_give_the_same_files(comparison, report, tmp_path):
    folder, _ = report
    for path in write_reports(comparison, tmp_path):
        assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes(), path


def test_the_markdown_has_one_table_of_all_methods(comparison, report):
    text = (report[0] / "report.md").read_text()
    assert text.startswith("# 4 methods on gsm8k\n")
    results = re.search(r"## Results \(12 requests\)\n\n(.*?)\n\n", text, re.DOTALL)[1].splitlines()
    assert results[0] == (
        "| method | typical speedup (95%) | throughput | acceptance length | TPOT | lossless |"
    )
    more_columns = text[text.index("<summary>More columns</summary>") :].splitlines()
    titles = "speedup in all (95%) | acceptance rate | draft efficiency | WDT | TTFT | ITL p50 | ITL p95 | ITL p99"
    assert f"| method | {titles} |" in more_columns[:8], more_columns[:8]
    assert (
        text.index("![Speedup by method") < text.index("## Results") < text.index("## What was run")
    )
    # The order of the figure above the table, and of the terminal.
    by_speed = sorted(
        comparison.overall, key=lambda label: -(comparison.overall[label].speedup or 1.0)
    )
    assert by_speed != list(comparison.overall)
    assert [line.split("`")[1] for line in results[2:]] == by_speed
    for title in (
        f"## Against `{comparison.reference}`",
        "## By category",
        "## Pooled and per request",
        "## Figures",
    ):
        assert title in text
    for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (report[0] / name).exists()


def text_of(path):
    """Return the text of a file, without tags and line breaks."""
    return " ".join(re.sub(r"<[^>]*>", " ", path.read_text()).split())


def test_every_figure_says_what_was_measured_on_what(report):
    for name in FIGURES:
        text = text_of(report[0] / "plots" / f"{name}.svg")
        assert "gsm8k; 12 requests; bundled-target + bundled-draft; greedy; batch size 1" in text
        assert "measured time" in text
        with Image.open(report[0] / "plots" / f"{name}.png") as picture:
            assert picture.width == 960
    assert (report[0] / "report.html").read_text().count("<figcaption>") == len(FIGURES)


def test_modelled_time_is_said_everywhere(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    for record in records:
        record.time_kind = "modelled"
    write_run(tmp_path, "wisp", records, time_kind="modelled")
    write_run(tmp_path, "threshold", records, time_kind="modelled")
    comparison = compare(load_runs([tmp_path])[0])
    write_reports(comparison, tmp_path / "report")
    for name in ("report.md", "report.html", "report.tex", "plots/itl.svg"):
        assert "modelled time" in text_of(tmp_path / "report" / name), name
    assert "MODELLED TIME" in (tmp_path / "report" / "report.md").read_text()


def test_a_forced_comparison_is_marked_on_every_output(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    config = make_run()["config"] | {"max_new_tokens": 9}
    write_run(tmp_path, "threshold", records, in_turn(plain(records)), config=config)
    write_reports(compare(load_runs([tmp_path])[0], force=True), tmp_path / "report")
    for name in (
        "report.md",
        "report.html",
        "report.tex",
        *(f"plots/{name}.svg" for name in FIGURES),
    ):
        assert "FORCED: these runs differ" in text_of(tmp_path / "report" / name), name
    rows = csv.DictReader((tmp_path / "report" / "report.csv").open())
    assert {row["forced"] for row in rows} == {"True"}


def test_one_run_keeps_its_own_report_and_gets_figures(run):
    write_reports(compare(load_runs([run])[0], decode=lambda ids: f"prompt of {len(ids)}"), run)
    text = (run / "report.md").read_text()
    assert text.startswith("# `wisp` on gsm8k\n")
    for title in (
        "Losslessness",
        "Results",
        "Latency (measured)",
        "By category",
        "Pooled and per request",
        "Figures",
    ):
        assert f"## {title}" in text
    assert "prompt of 2" in text
    assert "<summary>Provenance</summary>" in text
    assert "no difference from" not in text
    assert (run / "report.html").read_text().count("<figure") == len(FIGURES)


def test_what_could_not_be_read_is_said_in_the_report(run):
    file = run / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    write_reports(compare(load_runs([run])[0]), run, ["md", "html"])
    for name in ("report.md", "report.html"):
        assert (
            "requests.jsonl:8: the last line was cut short: left out." in (run / name).read_text()
        )


def test_recorded_timelines_are_shown_in_a_joint_report_too(tmp_path):
    paths = write_methods(tmp_path, drafts={"wisp": (4, 0.8), "threshold": (4, 0.7)})
    timeline = Timeline()
    for number in range(3):
        timeline.add(Span("requests/q0", f"round {number + 1} (+3)", number, number + 1, ("q0",)))
        timeline.add(Span("server", "verify", number, number + 0.5, ("q0",)))
    write_pictures(paths[0] / "plots", timeline, "wisp, measured time")
    write_reports(compare(load_runs(paths)[0]), tmp_path / "joint")
    name = f"timeline-{paths[0].name}"
    assert (tmp_path / "joint" / "plots" / f"{name}.svg").exists()
    assert f"plots/{name}.png" in (tmp_path / "joint" / "report.md").read_text()
    assert f'<figure class="{name.lower()}">' in (tmp_path / "joint" / "report.html").read_text()
    write_reports(compare(load_runs(paths[:1])[0]), paths[0])
    assert "plots/timeline.png" in (paths[0] / "report.md").read_text()
    assert '<figure class="timeline">' in (paths[0] / "report.html").read_text()


def test_csv_has_a_line_per_table_and_method(comparison):
    rows = list(csv.DictReader(StringIO(to_csv(comparison))))
    assert len(rows) == sum(len(part.rows) for part in comparison.parts)
    assert rows[0]["time_kind"] == "measured"
    assert {"wdt_s", "makespan_s", "throughput_tok_per_s", "server_tokens_per_busy_second"} <= rows[
        0
    ].keys()
    for row in rows[: len(comparison.overall)]:
        summary = comparison.overall[row["method"]]
        assert float(row["acceptance_length"]) == pytest.approx(summary.acceptance_length)
        assert (row["speedup"] == "") is (summary.speedup is None)
        if row["speedup"]:
            assert float(row["speedup_low"]) <= float(row["speedup"]) <= float(row["speedup_high"])


def test_csv_has_nine_significant_digits(comparison):
    rows = list(csv.DictReader(StringIO(to_csv(comparison))))
    for row in rows[: len(comparison.overall)]:
        throughput = comparison.overall[row["method"]].throughput
        assert row["throughput_tok_per_s"] == str(float(f"{throughput:.9g}")) != str(throughput)


def test_latex_is_a_table_of_booktabs_with_nothing_unescaped(comparison):
    text = to_latex(comparison)
    for command in (r"\toprule", r"\midrule", r"\bottomrule", r"\usepackage{booktabs}"):
        assert text.count(command) == 1
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(comparison.overall)
    assert len({line.count(" & ") for line in rows}) == 1
    assert not re.search(r"(?<!\\)[%#]", text.partition("\n")[2])
    assert latex("a_b & 50% ~ {x} ^ \\ # $ ≈ µ") == (
        r"a\_b \& 50\% \textasciitilde{} \{x\} \textasciicircum{} \textbackslash{} \# \$ $\approx$ $\mu$"
    )


def test_latex_has_names_in_rows_and_their_options_below():
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    baseline = autoregressive_like(records)
    summary = summary_of(records, baseline)
    text = to_latex(
        comparison_of(records, baseline, summary, method="fixed-k:k=4", options={"k": 4})
    )
    assert {line.split(" & ")[0] for line in text.splitlines() if line.startswith(r"\texttt")} == {
        r"\texttt{fixed-k}",
        r"\texttt{autoregressive}",
    }
    assert "Options: fixed-k (k=4)." in text.partition(r"\parbox")[2]


def test_the_help_of_columns_names_each_of_them() -> None:
    option = get_type_hints(ComparisonOptions, include_extras=True)["columns"].__metadata__[0]
    _, _, named = option.help.rstrip(".").partition(": ")
    assert named.split(", ") == list(short_names())


def test_latex_names_units_marks_the_best_and_can_be_pointed_to(comparison):
    text = to_latex(comparison)
    assert r"\begin{table*}" in text
    assert r"\label{tab:skit-gsm8k}" in text
    assert r"Speedup ($\times$) & " in text
    assert "TPOT (ms)" in text
    bold = [
        line.split(" & ")[1]
        for line in text.splitlines()
        if comparison.reference in line and " & " in line
    ]
    assert bold[0].startswith(
        r"\textbf{" + f"{comparison.overall[comparison.reference].typical_speedup:.2f}" + "}"
    )
    narrow = to_latex(comparison, Look(parse_columns("typical_speedup,acceptance_length")))
    assert r"\begin{table}" in narrow
    assert r"$\tau$: committed tokens per verification" in narrow
    with pytest.raises(
        SkitError,
        match=r"unknown column 'typical-sped' \(did you mean 'typical-speedup'\?\); known: typical-speedup,",
    ):
        parse_columns("typical-sped")


def test_of_a_metric_that_only_describes_no_number_is_bold(comparison, monkeypatch):
    only = Look(parse_columns("acceptance_length"))
    assert r"\textbf{" in to_latex(comparison, only)
    (column,) = only.table_columns()
    monkeypatch.setitem(COLUMNS, column.title, replace(column, better="neither"))
    assert r"\textbf{" not in to_latex(comparison, only)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX is installed here")
@pytest.mark.parametrize("columns", ["", "twocolumn"])
@pytest.mark.parametrize("encoding", ["OT1", "T1"])
@pytest.mark.parametrize("chosen", ["", "typical-speedup,acceptance-length,tpot,lossless"])
def test_latex_compiles_without_an_overfull_box(comparison, tmp_path, columns, encoding, chosen):
    look = Look(parse_columns(chosen)) if chosen else Look()
    strange = render_latex.render(
        Table(("[n]", "ž"), [("[a] é 通", "µ≈½—“x” <|end|> --x")]), "a^b ~ ²", "b", "ø ≥ …"
    )
    (tmp_path / "report.tex").write_text(to_latex(comparison, look) + strange)
    packages = rf"\usepackage[{encoding}]{{fontenc}}\usepackage{{booktabs}}"
    page = rf"\documentclass[{columns}]{{article}}{packages}\begin{{document}}\input{{report}}\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert b"Overfull" not in done.stdout


def test_figures_for_a_paper_are_bare_and_have_letters_of_seven_points(comparison, tmp_path):
    look = Look(bare=True, size="column")
    written = write_reports(comparison, tmp_path, ["svg", "pdf"], look=look)
    assert {path.suffix for path in written} == {".svg", ".pdf"}
    for path in (tmp_path / "plots").glob("*.svg"):
        text = path.read_text()
        assert "measured time" not in text
        assert (
            min(float(size) for size in re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", text))
            >= 7
        )
        assert float(re.search(r'width="([\d.]+)pt"', text)[1]) == pytest.approx(72 * 3.15)


def test_the_label_of_a_short_axis_is_broken_where_it_would_be_cut():
    def paint(axes):
        axes.set_yticks([0, 1], ["threshold (max_draft=12)", "wisp (predictor=auto)"])
        axes.set_xlabel("speedup over autoregressive decoding")

    def lines(size):
        drawn = draw(Picture("a", "", "", 2.0, paint), "", ("svg",), bare=True, size=size)[
            "svg"
        ].decode()
        return re.findall(r"<text[^>]*>([^<]*(?:speedup|decoding)[^<]*)</text>", drawn)

    assert lines("screen") == ["speedup over autoregressive decoding"]
    assert lines("column") == ["speedup over", "autoregressive decoding"]


def test_marks_are_named_beside_them_unless_names_would_lie_upon_each_other():
    for gap, fits in ((1.0, True), (1e-4, False)):
        figure = new_figure((4, 3))
        axes = figure.subplots()
        points = {
            f"method-{number}": (1 + number * gap, 2 + number * gap)
            for number in range(12 if not fits else 3)
        }
        axes.plot(*zip(*points.values(), strict=True))
        axes.set(xlim=(0, 6), ylim=(0, 6))
        assert name_points(axes, points) is fits
        assert len(axes.texts) == (len(points) if fits else 0)


def test_a_folder_that_cannot_be_written_is_one_line(comparison, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SkitError, match="cannot write the report in"):
        write_reports(comparison, tmp_path / "file" / "below", ["csv"])
