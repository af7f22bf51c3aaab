"""Markdown of the reports as pages: nothing is loaded, nothing runs, and no text becomes a tag."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from specbench_kit.reports.comparison.plots import pictures
from specbench_kit.reports.render_html import shell
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.reports.writing.html import inline, inline_svg, page
from specbench_kit.reports.writing.markup import code, fence, folded, table, warning

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


def parsed(markdown, drawings=None):
    checker = Checker()
    checker.feed(page(markdown, drawings or {}))
    assert checker.open == []
    return checker


def body(markdown, drawings=None):
    return page(markdown, drawings or {}).partition("<main>\n")[2].partition("\n</main>")[0]


def test_a_page_loads_nothing_and_runs_its_own_script_alone():
    found = parsed("# Title\n\nText.")
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    assert found.tags.count("script") == 1
    script = page("# Title", {}).partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in found.attributes
    assert not re.search(r"innerHTML|eval|fetch|XMLHttp|import|https?:", script)
    assert "<script" not in shell("Plain", "", "")
    assert ("content", "width=device-width, initial-scale=1") in found.attributes
    assert "prefers-color-scheme: dark" in page("# T", {})


def test_blocks():
    assert body("# A `b`\n\n## C") == "<h1>A <code>b</code></h1>\n<h2>C</h2>"
    assert body("One\ntwo **three**.") == "<p>One two <strong>three</strong>.</p>"
    assert body("- a\n- b") == "<ul><li>a</li><li>b</li></ul>"
    assert body(folded("More", "Text")) == "<details>\n<summary>More</summary>\n<p>Text</p>\n</details>"
    assert body(warning(["A", "B"])) == (
        '<aside class="warning" role="note"><ul><li><strong>A</strong></li><li><strong>B</strong></li></ul></aside>'
    )


def test_tables_scroll_in_their_own_box():
    found = body(table(["method", "speedup", "tokens"], [(code("a|b"), "1.5x", "3")]))
    assert found.startswith('<div class="scroll" tabindex="0"><table class="numbers"><thead>')
    assert "<tr><th scope=row><code>a|b</code></th><td>1.5x</td><td>3</td></tr>" in found
    assert '<table class="facts"><tbody>' in body(table(["", ""], [("dataset", "gsm8k")]))


def test_code_keeps_lines_and_markup_of_its_text():
    text = "## no heading\n\n| no | table |\n```\n</details>\n<b>"
    found = body(fence(text) + "\n\nAfter.")
    assert found.startswith("<pre>## no heading\n\n| no | table |\n```\n&lt;/details&gt;\n&lt;b&gt;</pre>")
    assert found.endswith("<p>After.</p>")


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "<img src=x onerror=y>", '" onload="x', "a & b"])
def test_no_text_becomes_a_tag(text):
    for markdown in (f"# {text}", text, table(["a", "b"], [(text, code(text))]), fence(text), warning([text])):
        found = parsed(markdown)
        assert found.tags.count("script") == 1
        assert "img" not in found.tags
        assert not {"onload", "onerror"} & {name for name, _ in found.attributes}
        assert text in "".join(found.text)


def test_links_lead_to_the_web_or_to_files_beside_the_page():
    assert inline("[a](https://ui.perfetto.dev)") == '<a href="https://ui.perfetto.dev">a</a>'
    assert "<a" not in inline("[a](https://x.org/y)")
    assert inline("[`a.json`](plots/a.json)") == '<a href="plots/a.json"><code>a.json</code></a>'
    assert inline("[a](javascript:alert)") == "[a](javascript:alert)"


def test_pictures_are_inlined_side_by_side_with_captions():
    drawings = {"plots/a": "<svg viewBox='0 0 1 1'></svg>", "plots/b": "<svg viewBox='0 0 1 1'></svg>"}
    found = body("![First](plots/a.png)\n*What `x` is.*\n\n![Second](plots/b.png)\n\nAfter.", drawings)
    assert found.count('<div class="figures">') == 1
    assert '<figure class="a"><svg role="img" aria-label="First" viewBox' in found
    assert "<figcaption>What <code>x</code> is.</figcaption>" in found
    assert "<figcaption>Second</figcaption>" in found
    assert found.endswith("<p>After.</p>")


def test_a_drawing_follows_the_colours_of_its_page(comparison):
    for picture in pictures(comparison):
        drawn = draw(picture, "somewhere", ["svg"])["svg"].decode()
        inlined = inline_svg(drawn, picture.name)
        assert inlined.startswith("<svg viewBox=")
        assert "var(--" in inlined
        assert "#000000" not in inlined
        assert not [part for part in ("<metadata", "<style", "<!DOCTYPE", "<?xml") if part in inlined]
        checker = Checker()
        checker.feed(inlined)
        identifiers = [value for name, value in checker.attributes if name == "id"]
        assert all(value.startswith(f"{picture.name.replace('_', '-')}-") for value in identifiers)
        links = [value[1:] for name, value in checker.attributes if name == "xlink:href"]
        assert set(links) <= set(identifiers)
