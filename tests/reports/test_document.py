"""Blocks and tables of documents, and what each renderer makes of them."""

import re
from io import StringIO

import pytest
from rich.console import Console

from specbench_kit.metrics.vocabulary import Unit
from specbench_kit.reports import render_html, render_latex, render_markdown, render_terminal
from specbench_kit.reports.document import (
    Caution,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    paragraphs,
    plain,
    with_more_columns,
)

TABLE = Table(
    ("method", Column("speedup", "times"), Column("TPOT", "seconds"), Column("headroom", "share")),
    [
        (code("wisp"), Estimate(1.5, (1.4, 1.6), " ≈", best=True), 0.0123, None),
        (code("a_b"), None, 0.2, None),
    ],
)


def test_a_wide_table_shows_the_named_columns_and_opens_the_others() -> None:
    first, folded = with_more_columns(TABLE, ("method", "speedup"))
    assert isinstance(first, Table)
    assert first.titles == ["method", "speedup"]
    assert first.texts()[1] == ["`a_b`", "–"]
    assert folded == Folded("All columns", [TABLE])
    assert with_more_columns(TABLE, TABLE.titles) == [TABLE.columns_of(TABLE.titles)]


@pytest.mark.parametrize(
    ("column", "cell", "text"),
    [
        (Column("", "share"), 0.5, "50.0%"),
        (Column("", "count"), 1234, "1,234"),
        (Column("", "bytes"), 2500, "2.50 kB"),
        (Column("", "seconds"), None, "–"),
        (Column("", "share"), "finished text", "finished text"),
        (Column(), 7, "7"),
        (Column("", "times"), Estimate(1.5, (1.4, 1.6)), "1.50x (1.40–1.60)"),
        (Column("", "times"), Estimate(1.0, (1.0001, 1.0002)), "1.00x (1.0001–1.0002)"),
        (Column("", "times"), Estimate(1.4, (0.9997, 1.98)), "1.40x (1.00–1.98)"),
        (Column("", "share"), Estimate(-0.003, (-0.008, 0.001)), "-0.3% (-0.8% to 0.1%)"),
        (Column("", "share"), Estimate(0.5, (0.4, 0.6), " *"), "50.0% (40.0%–60.0%) *"),
        (Column("", "share"), Estimate(0.5, (0.5, 0.5)), "50.0%"),
    ],
)
def test_a_column_writes_its_cells_by_its_unit(column: Column, cell: Cell, text: str) -> None:
    assert column.text(cell) == text


def test_columns_without_any_value_can_be_left_out() -> None:
    assert TABLE.without_empty_columns().titles == ["method", "speedup", "TPOT"]


def test_empty_texts_and_cautions_make_no_block() -> None:
    assert paragraphs("", "a") == [Paragraph("a")]
    assert caution([]) == []
    assert Document.of("t", [], [Note("n")]).blocks == [Note("n")]


def test_markdown_has_every_block() -> None:
    text = render_markdown.render(
        Document("Title", [TABLE, Caution(["A", "B"]), Figure("f", "plots/f.png", "Note.")])
    )
    assert text.startswith(
        "# Title\n\n| method | speedup | TPOT | headroom |\n| --- | --- | --- | --- |\n"
    )
    assert "| `wisp` | 1.50x (1.40–1.60) ≈ | 12.3 ms | – |" in text
    assert text.endswith("> [!WARNING]\n> **A**\n>\n> **B**\n\n![f](plots/f.png)\n*Note.*\n")


def test_a_terminal_shows_texts_without_marks_and_no_figures() -> None:
    console = Console(file=StringIO(), width=60)
    blocks = [
        Heading("`H`"),
        Paragraph("a **b** [c](d)"),
        Folded("More", [TABLE]),
        Figure("picture", "p.png"),
    ]
    render_terminal.show(console, blocks)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:3] == ["H", "a b c", "More"]
    assert lines[4].split() == ["wisp", "1.50x", "(1.40–1.60)", "≈", "12.3", "ms", "–"]
    assert "picture" not in lines


def test_a_paper_has_units_in_titles_and_the_best_in_bold() -> None:
    text = render_latex.render(TABLE, "Caption & more", "slug", "Note.")
    assert r"method & speedup ($\times$) & TPOT (ms) & headroom (\%) \\" in text
    assert r"\texttt{wisp} & \textbf{1.50} {\scriptsize [1.40--1.60]} & 12.3 & -- \\" in text
    assert r"\texttt{a\_b} & -- & 200 & -- \\" in text
    assert r"\caption{Caption \& more}" in text


@pytest.mark.parametrize(
    ("unit", "value"), [("times", 0.9996), ("share", 0.06543), ("rate", 99.97), ("count", 7)]
)
def test_a_paper_has_the_digits_of_the_page(unit: Unit, value: float) -> None:
    table = Table(("method", Column("metric", unit)), [("wisp", value)])
    on_the_page = re.sub(r"[^\d.,]", "", table.texts()[0][1])
    assert rf"wisp & {on_the_page} \\" in render_latex.render(table, "Caption", "slug", "Note.")


def test_latex_puts_columns_that_do_not_fit_below_the_others_and_shrinks_nothing() -> None:
    columns = [Column(f"a metric of number {number}", "share") for number in range(9)]
    text = render_latex.render(
        Table(("method", *columns), [("`a`", *[0.5] * 9)]), "Caption", "slug", "Note."
    )
    parts = text.split(r"\begin{tabular}")[1:]
    assert len(parts) == 3
    assert all(r"\texttt{a} & 50.0" in part for part in parts)
    assert all(text.count(f"number {number}") == 1 for number in range(9))
    assert r"\begin{table*}" in text
    assert "resizebox" not in text
    assert not set(re.findall(r"\\(tiny|small|fontsize)\b", text))


@pytest.mark.parametrize(
    "text", [r"--a[b]<c>|\\input{x}&%$#_^~", "é ø Ž µ ≥ ½ ﬁ “q” …", "通义 \t\x00 \U0001f600", "---"]
)
def test_latex_is_ascii_in_which_nothing_is_a_command_of_the_texts(text: str) -> None:
    written = render_latex.render(
        Table((text, Column(text)), [(code(text), text)]), text, "slug", text
    )
    assert written.isascii()
    assert all(character.isprintable() or character == "\n" for character in written)
    lines = written.partition("\n")[2]
    assert not re.search(r"(?<!\\)[%#]|\\input", lines)
    # Braces and formulas close where they open.
    unescaped = re.sub(r"\\[{}$\\]", "", lines)
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0


def test_latex_keeps_letters_that_it_can_set() -> None:
    assert render_latex.latex("Žilina é ½ 通") == r"\v{Z}ilina \'{e} 12 U+901A"
    assert render_latex.latex("--limit --- [x]") == "-{}-limit -{}-{}- {[}x{]}"


def test_latex_names_tokens_as_the_unit_of_tokens_and_of_no_other_number() -> None:
    columns = (Column("length", "tokens"), Column("factor", "number"), Column("speed", "rate"))
    written = render_latex.render(
        Table(("method", *columns), [("`a`", 2.5, 1.25, 40.0)]), "caption", "slug", "note"
    )
    assert "method & length (tok) & factor & speed (tok/s)" in written
    assert "2.50 & 1.25 & 40.0" in written


def test_plain_drops_all_marks() -> None:
    assert plain("`a` **b `c`** [d](e)") == "a b c d"


def test_titles_of_numbers_wrap_between_words_before_a_column_falls_below() -> None:
    titles = (
        "tokens per verification",
        "share of the drafting time",
        "late at 8 tok/s",
        "speedup of a typical prompt",
    )
    table = Table(
        ("cell", *(Column(title, "number") for title in titles)),
        [("`coder/phone-160/8`", *[0.5] * 4)],
    )
    narrow, wide = (Console(file=StringIO(), width=width) for width in (64, 120))
    for console in (narrow, wide):
        render_terminal.show(console, [table])
    lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines].count("coder/phone-160/8") == 1
    assert set(" ".join(lines).split()) == {
        "cell",
        "coder/phone-160/8",
        "0.500",
        *" ".join(titles).split(),
    }
    assert max(map(len, lines)) <= 64
    assert lines[-1].split() == ["coder/phone-160/8", *["0.500"] * 4]
    assert len(wide.file.getvalue().splitlines()) == 2  # type: ignore[attr-defined]


def test_cautions_that_change_the_conclusion_come_first_and_are_folded_nowhere() -> None:
    harmless = [f"MODELLED TIME: number {number}." for number in range(6)]
    weighty = [
        "`wisp`: NOT LOSSLESS: 3 outputs differ.",
        "DERIVED TIMES: wisp 1.1x to 0.9x (the verdict does not hold over the range).",
        "SERVER-ONLY IS FASTER: the edge costs time here.",
        "CONSTANT STEPS: an upper bound.",
    ]
    (box,) = caution([*harmless[:3], *weighty, *harmless[3:]])
    assert list(box.lines) == [*weighty, *harmless]
    page = render_html.blocks([box], {})
    for line in weighty:
        assert f'<p class="line">{render_html.inline(line)}</p>' in page
        assert page.index(render_html.inline(line)) < page.index("<details")
    assert page.index("6 more cautions") < page.index("number 0")
    assert caution([]) == []
