"""Documents as pages: nothing is loaded, nothing runs, and no text becomes a tag."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from specbench_kit.reports.comparison.plots import pictures
from specbench_kit.reports.document import (
    BulletList,
    Caution,
    CodeBlock,
    Column,
    Document,
    Estimate,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    code,
    facts,
)
from specbench_kit.reports.render_html import inline, inline_svg, render, shell
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.reports.writing.html_style import CSS

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Checker(HTMLParser):
    """Every tag is closed in its turn; collects tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(*blocks, title="Title", drawings=None):
    return render(Document(title, blocks), drawings or {})


def parsed(*blocks, title="Title"):
    checker = Checker()
    checker.feed(page(*blocks, title=title))
    assert checker.open == []
    return checker


def body(*blocks, drawings=None):
    main = page(*blocks, drawings=drawings).partition("<main>\n")[2].partition("\n</main>")[0]
    return main.removeprefix("<h1>Title</h1>\n")


def test_a_page_loads_nothing_and_runs_its_own_script_alone():
    parser = parsed(Paragraph("Text."))
    assert not {"link", "img", "iframe", "object"} & set(parser.tags)
    assert parser.tags.count("script") == 1
    script = page().partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in parser.attributes
    assert not re.search(r"innerHTML|eval|fetch|XMLHttp|import|https?:", script)
    assert "<script" not in shell("Plain", "", "")
    assert ("content", "width=device-width, initial-scale=1") in parser.attributes
    assert "prefers-color-scheme: dark" in page()


def test_blocks():
    assert (
        page(Heading("C"), title="A `b`")
        .partition("<main>\n")[2]
        .startswith("<h1>A <code>b</code></h1>\n<h2>C</h2>\n</main>")
    )
    assert "<title>A b</title>" in page(title="A `b`")
    assert body(Paragraph("One\ntwo **three**.")) == "<p>One two <strong>three</strong>.</p>"
    assert body(BulletList(["a", "b"])) == "<ul><li>a</li><li>b</li></ul>"
    assert (
        body(Folded("More", [Paragraph("Text")]))
        == "<details>\n<summary>More</summary>\n<p>Text</p>\n</details>"
    )
    assert body(Caution(["A", "B"], severe=True)) == (
        '<aside class="warning severe" role="note"><ul><li><strong>A</strong></li><li><strong>B</strong></li></ul>'
        "</aside>"
    )


def test_three_cautions_of_a_line_each_are_seen_and_all_others_open_on_a_click():
    def line(text):
        return f'<details class="line"><summary>{text}</summary></details>'

    def box(content):
        return f'<aside class="warning" role="note">{content}</aside>'

    assert body(Caution(["A", "B", "C", "D"])) == box("".join(map(line, "ABCD")))
    assert body(Caution(["A", "B", "C", "D", "E"])) == box(
        f"{''.join(map(line, 'ABC'))}<details><summary>2 more cautions</summary>{line('D')}{line('E')}</details>"
    )


def test_tables_scroll_in_their_own_box():
    table = Table(
        ("method", Column("speedup", "times"), Column("tokens", "count")), [(code("a|b"), 1.5, 3)]
    )
    assert body(table).startswith('<div class="scroll" tabindex="0"><table class="numbers"><thead>')
    assert "<tr><th scope=row><code>a|b</code></th><td>1.50x</td><td>3</td></tr>" in body(table)
    assert '<table class="facts"><tbody>' in body(facts([("dataset", "gsm8k")]))


def test_words_among_numbers_keep_to_the_left_and_names_do_not_break():
    role = "fitted: drafting that is not hidden"
    table = Table(
        ("series", "role", "seen"),
        [("wisp/table-2", role, "36 (23–49)"), ("wisp/goodput", "identity", "2")],
    )
    html = body(table)
    assert (
        f"<th scope=row class=whole>wisp/table-2</th><td class=text>{role}</td><td>36 (23–49)</td>"
        in html
    )
    assert "<th scope=row>wisp/goodput</th><td class=text>identity</td>" in html
    assert (
        "<th scope=col>series</th><th scope=col class=text>role</th><th scope=col>seen</th>" in html
    )


def test_words_that_begin_with_a_number_keep_to_the_left_and_measurements_do_not():
    rows = [("prompts", "100 tokens on average", "6.35 ms (5.9 to 9.98) silicon")]
    found = body(Table(("assumption", "assumed", "time"), rows))
    assert (
        "<td class=text>100 tokens on average</td><td>6.35 ms (5.9 to 9.98) silicon</td>" in found
    )


def test_a_wide_table_of_few_rows_goes_down_on_a_phone_and_names_every_cell():
    titles = ("", "cards", "weights", "$ per hour", "a < b")
    rows = [("edge", "4 x l40s", "16 bits", "$3.16", "")] * 5
    found = body(Table(titles, rows))
    assert '<table class="numbers stacked">' in found
    assert '<th scope=row>edge</th><td data-title="cards">4 x l40s</td>' in found
    assert '<td data-title="a &lt; b"></td>' in found
    assert '<table class="words stacked">' in body(
        Table(titles, [*rows, ("edge", "word " * 20, "", "", "")])
    )
    assert '<table class="words stacked">' in body(
        Table(titles[:4], [(*rows[0][:3], "word " * 20)] * 9)
    )
    for table in (Table(titles, rows + rows[:1]), Table(titles[:4], [row[:4] for row in rows])):
        assert "stacked" not in body(table)
        assert "data-title" not in body(table)


def test_a_long_table_most_of_whose_columns_are_words_goes_down_on_a_phone_too():
    titles = ("experiment", "claim", "kind", "published", "ours", "verdict")
    rows = [("table-1", "its rate", "predicted", "1.00", "1.02", "within 10%")] * 9
    assert '<table class="numbers stacked">' in body(Table(titles, rows))
    assert "stacked" not in body(Table(titles, [(*row[:2], "3", *row[3:]) for row in rows]))


def test_the_name_of_a_run_breaks_where_it_is_wider_than_its_column():
    run = "20261127T172340Z-wisp-gsm8k-b3005868"
    assert f"<th scope=row>{run}</th>" in body(Table(("run", "result"), [(run, "broken")]))


def test_an_interval_among_sentences_is_not_broken():
    table = Table(
        ("policy", Column("speedup", "times"), "why"),
        [("a", Estimate(1.5, (1.25, 1.75)), "word " * 20)],
    )
    html = body(table)
    assert '<table class="words">' in html
    assert "<td class=number>1.50x (1.25–1.75)</td>" in html


def test_code_keeps_lines_and_markup_of_its_text():
    text = "## no heading\n\n| no | table |\n```\n</details>\n<b>"
    html = body(CodeBlock(text), Paragraph("After."))
    assert html.startswith(
        "<pre>## no heading\n\n| no | table |\n```\n&lt;/details&gt;\n&lt;b&gt;</pre>"
    )
    assert html.endswith("<p>After.</p>")


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "<img src=x onerror=y>", '" onload="x', "a & b"]
)
def test_no_text_becomes_a_tag(text):
    table = Table((text, "b"), [(text, code(text))])
    figure = Figure(text, "plots/a.png", text)
    blocks = [
        Heading(text),
        Paragraph(text),
        table,
        CodeBlock(text),
        Caution([text]),
        BulletList([text]),
        figure,
    ]
    for block in [*blocks, Folded(text, blocks)]:
        parser = parsed(block, title=text)
        assert parser.tags.count("script") == 1
        assert "img" not in parser.tags
        assert not {"onload", "onerror"} & {name for name, _ in parser.attributes}
        assert "".join(parser.text).count(text) >= 3


def test_links_lead_to_the_web_or_to_files_beside_the_page():
    assert inline("[a](https://ui.perfetto.dev)") == '<a href="https://ui.perfetto.dev">a</a>'
    assert "<a" not in inline("[a](https://x.org/y)")
    assert inline("[`a.json`](plots/a.json)") == '<a href="plots/a.json"><code>a.json</code></a>'
    assert inline("[a](javascript:alert)") == "[a](javascript:alert)"


def test_pictures_are_inlined_side_by_side_with_captions():
    drawings = {
        "plots/a": "<svg viewBox='0 0 1 1'></svg>",
        "plots/b": "<svg viewBox='0 0 1 1'></svg>",
    }
    figures = [Figure("First", "plots/a.png", "What `x` is."), Figure("Second", "plots/b.png")]
    html = body(*figures, Paragraph("After."), drawings=drawings)
    assert html.count('<div class="figures">') == 1
    assert '<figure class="a"><svg role="img" aria-label="First" viewBox' in html
    assert "<figcaption>What <code>x</code> is.</figcaption>" in html
    assert "<figcaption>Second</figcaption>" in html
    assert html.endswith("<p>After.</p>")
    assert '<a href="plots/a.png">First</a>' in body(*figures)


def test_a_drawing_follows_the_colours_of_its_page(comparison):
    for picture in pictures(comparison):
        drawn = draw(picture, "somewhere", ["svg"])["svg"].decode()
        inlined = inline_svg(drawn, picture.name)
        assert inlined.startswith("<svg viewBox=")
        assert "var(--" in inlined
        assert "#000000" not in inlined
        assert not [
            part for part in ("<metadata", "<style", "<!DOCTYPE", "<?xml") if part in inlined
        ]
        checker = Checker()
        checker.feed(inlined)
        identifiers = [value for name, value in checker.attributes if name == "id"]
        assert all(value.startswith(f"{picture.name.replace('_', '-')}-") for value in identifiers)
        links = [value[1:] for name, value in checker.attributes if name == "xlink:href"]
        assert set(links) <= set(identifiers)


def test_options_of_a_method_are_cut_between_them_alone() -> None:
    assert inline("`wisp:a=1,b=<2`, and more") == "<code>wisp:a=1,<wbr>b=&lt;2</code>, and more"


def test_a_long_name_in_the_first_column_of_a_phone_is_broken_and_covers_no_other_cell() -> None:
    """That column is no wider than a third of a phone, and a method such as threshold:max_draft=8 has no space."""
    (rule,) = re.findall(r"\.numbers tr > :first-child code \{([^}]*)\}", CSS)
    assert {"white-space: normal", "overflow-wrap: anywhere"} <= {
        part.strip() for part in rule.split(";")
    }
