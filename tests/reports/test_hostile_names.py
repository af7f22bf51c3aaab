"""Names and pictures in a run of somebody else stay what they are: text and shapes."""

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from report_builders import make_run
from rich.console import Console
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.core.plain_text import csv_text
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.comparison.files import write_reports
from specbench_kit.reports.comparison.terminal import print_comparison
from specbench_kit.reports.document import CodeBlock, Document, Paragraph, Table
from specbench_kit.reports.render_markdown import blocks, render
from specbench_kit.reports.writing.drawing import safe_svg
from specbench_kit.reports.writing.html_style import SCRIPT

TAG = "<script>alert(1)</script>"
LINKS = "[b](https://else.where) ![](https://else.where/a.png)"
NAME = f"x\n\n{TAG}\n# Title\n\\end{{table}} {LINKS} [red]r[/red] \x1b[31m$x`"
METHOD = '=HYPERLINK("https://else.where")'
SVG = (
    '<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "b">]><svg xmlns="http://www.w3.org/2000/svg" '
    'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" onload="alert(1)"><script>alert(1)</script>'
    '<foreignObject><form action="https://else.where"/></foreignObject><meta http-equiv="refresh"/>'
    '<defs><path id="p" d="M0 0L9 9"/></defs><use xlink:href="#p"/><use xlink:href="https://else.where/a.svg#p"/>'
    '<rect x="1" width="3" style="fill: url(https://else.where/x)" onclick="alert(1)"/>'
    '<a href="javascript:alert(1)"><text>out</text></a><text x="2" style="fill: #112233">shown</text></svg>'
)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    records = in_turn(records_of(4, 0.7, 8, 24))
    for record in records:
        record.category = NAME
    fields = make_run()
    models = {role: model | {"name": NAME} for role, model in fields["models"].items()}
    changes = {"dataset": fields["dataset"] | {"name": NAME, "location": NAME}, "models": models}
    run = write_run(tmp_path, "fixed-k", records, in_turn(plain(records)), **changes)
    (run / "run.json").write_text(
        json.dumps(json.loads((run / "run.json").read_text()) | {"method": METHOD})
    )
    (run / "plots").mkdir()
    (run / "plots" / "timeline.svg").write_text(SVG)
    return compare(load_runs([run])[0])


def test_no_markup_reaches_a_report(comparison: Comparison, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_reports(comparison, out, ["md", "html", "latex", "csv", "svg"])
    text, page, table = ((out / f"report.{suffix}").read_text() for suffix in ("md", "html", "tex"))
    outside = re.sub(r"^(`{3,})text\n.*?^\1$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)<(?!/?details>|/?summary>)", outside)
    assert "](https://else" not in outside
    assert not re.search("^# Title", text, re.MULTILINE)
    page = page.replace(f"<script>{SCRIPT}</script>", "")
    assert not re.search(
        r"<(script|form|meta http-equiv=\"refresh|foreignObject|img|a [^>]*else)|\son\w+=", page
    )
    assert not re.search(r"(?<!&gt;)alert\(1\)", page)
    (caption,) = re.findall(r"^\\caption.*$", table, re.MULTILINE)
    assert r"\textbackslash{}end\{table\}" in caption
    assert len(re.findall(r"\\end{table\*?}", table)) == 1
    for picture in (out / "plots").glob("timeline*.svg"):
        assert not re.search("script|else.where|onload|onclick|javascript", picture.read_text())
    assert list((out / "plots").glob("timeline*.svg"))


def test_no_markup_reaches_a_terminal(comparison: Comparison) -> None:
    screen = StringIO()
    print_comparison(Console(file=screen, force_terminal=False, width=400), comparison)
    assert "[red]r[/red]" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


def test_no_cell_begins_a_formula(comparison: Comparison, tmp_path: Path) -> None:
    write_reports(comparison, tmp_path, ["csv"])
    rows = list(csv.DictReader(StringIO((tmp_path / "report.csv").read_text())))
    assert {row["method"] for row in rows} >= {f"'{METHOD}"}
    assert not any(
        cell.startswith(("=", "+", "@", "\t", "\r")) for row in rows for cell in row.values()
    )


def test_numbers_in_a_table_stay_numbers() -> None:
    text = csv_text([{"a": -1.5, "b": "-1"}, {"a": 2, "c": "+x"}])
    assert text == "a,b,c\n-1.5,'-1,\n2,,'+x\n"


def test_code_that_ends_on_another_line_hides_no_tag() -> None:
    assert "\\<b>" in render(Document("a ` b\nc ` <b> `", []))
    assert "\\<b>" in blocks([Paragraph("a ` b\nc ` <b> `")])
    assert "\\<b>" in blocks([Table(("a `", "<b> `"), [])])
    assert (
        blocks([Paragraph("`<b>`"), CodeBlock("<b>\n\n<i>")]) == "`<b>`\n\n```text\n<b>\n\n<i>\n```"
    )


def test_no_text_begins_a_block_of_its_own() -> None:
    for text in ("a\n\n# Title", "a\n| b |", "a\n- b", "a\n```"):
        assert "\n" not in blocks([Paragraph(text)])
        assert blocks([Table((text, "b"), [(text, text)])]).count("\n") == 2


def test_of_a_drawing_shapes_and_texts_remain() -> None:
    drawing = safe_svg(SVG.encode()).decode()
    assert ">shown</text>" in drawing
    assert 'href="#p"' in drawing
    assert not re.search("script|else.where|onload|onclick|foreignObject|meta|out", drawing)


@pytest.mark.parametrize(
    "content", [b"", b"<svg>", b"\xff<svg/>", b"<svg>&a;</svg>", b"<svg>" * 5000]
)
def test_what_is_no_drawing_is_left_out(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a drawing"):
        safe_svg(content)
