"""Documents as self-contained HTML pages: no network, no script but the kit's own, pictures
inline.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from specbench_kit.reports.document import (
    SAFE_URL,
    Block,
    BulletList,
    Caution,
    CodeBlock,
    Document,
    Figure,
    FigureRow,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    plain,
    spans,
)
from specbench_kit.reports.writing.html_style import CSS, HASH, SCRIPT
from specbench_kit.reports.writing.palette import BLACK, GREY, OF_METHODS

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
NO_DRAWINGS: Mapping[str, str] = {}
SHOWN = 3
"""Cautions of a box that are seen before it is opened."""
LONG_CELL = 80
"""Characters from which a cell is a sentence, so that its table is set as text."""
LONG_WORD = 12
"""Characters from which the longest words of a column may break their lines."""
STACKED_COLUMNS = 5
STACKED_ROWS = 5
STACKED_WORDS = 4
"""On a phone a table goes down, a cell a line: one of at least so many columns and at most so many
rows, or of words in at least so many columns, the names of its rows among them.
"""
LONG_NAME = 24
"""Characters up to which the name of a row without blanks is not broken."""


def render(document: Document, drawings: Mapping[str, str]) -> str:
    """Return the page; `drawings` are SVG texts by the paths of the document's figures, less their
    suffixes.
    """
    body = blocks([Heading(document.title, 1), *document.blocks], drawings)
    return shell(plain(document.title), f"<main>\n{body}\n</main>", CSS, scripted=True)


def shell(title: str, body: str, css: str, *, scripted: bool = False) -> str:
    """Return a page that loads nothing and runs nothing but, where it is `scripted`, the kit's own
    script.

    `title` is plain text, `body` is HTML.
    """
    policy = f"{POLICY}; script-src '{HASH}'" if scripted else POLICY
    script = f"<script>{SCRIPT}</script>\n" if scripted else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n{script}</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def blocks(parts: Iterable[Block], drawings: Mapping[str, str] = NO_DRAWINGS) -> str:
    """Return blocks as HTML without a page around them; figures that follow each other share a
    grid.
    """
    pieces: list[str] = []
    for pictured, group in groupby(parts, lambda block: isinstance(block, Figure | FigureRow)):
        rendered = [_block(block, drawings) for block in group]
        pieces += [f'<div class="figures">{"".join(rendered)}</div>'] if pictured else rendered
    return "\n".join(pieces)


def _block(block: Block, drawings: Mapping[str, str]) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{inline(block.text)}</h{block.level}>"
        case Paragraph() | Note():
            return f"<p>{inline(block.text)}</p>"
        case Caution():
            return _caution(block)
        case BulletList():
            return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in block.items)}</ul>"
        case CodeBlock():
            return f"<pre>{escape(block.text)}</pre>"
        case Figure():
            return _figure(block, drawings)
        case FigureRow():
            return "".join(_figure(figure, drawings) for figure in block.figures)
        case Table():
            return _table(block)
        case Folded():
            body = blocks(block.blocks, drawings)
            return f"<details>\n<summary>{inline(block.title)}</summary>\n{body}\n</details>"


def _caution(box: Caution) -> str:
    """Return the box: severe lines whole, and those that change the conclusion; others cut to a
    line until opened.

    `SHOWN` lines stand before a fold.
    """
    if box.severe:
        items = "".join(f"<li><strong>{inline(line)}</strong></li>" for line in box.lines)
        return f'<aside class="warning severe" role="note"><ul>{items}</ul></aside>'
    lines = [f'<p class="line">{inline(line)}</p>' for line in box.lines[: box.whole]]
    lines += [
        f'<details class="line"><summary>{inline(line)}</summary></details>'
        for line in box.lines[box.whole :]
    ]
    # A fold for a single line would take as much room as the line.
    shown = max(SHOWN, box.whole) if len(lines) > max(SHOWN, box.whole) + 1 else len(lines)
    more = f"{len(lines) - shown} more cautions"
    fold = (
        f"<details><summary>{more}</summary>{''.join(lines[shown:])}</details>"
        if lines[shown:]
        else ""
    )
    return f'<aside class="warning" role="note">{"".join(lines[:shown])}{fold}</aside>'


def _figure(figure: Figure, drawings: Mapping[str, str]) -> str:
    """Return the drawing with its caption, or a link to the file of a figure that is not drawn
    inline.
    """
    title = escape(plain(figure.title))
    name = figure.path.rpartition(".")[0]
    if name not in drawings:
        return f'<p><a href="{escape(figure.path)}">{title}</a></p>'
    svg = drawings[name].replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    caption = inline(figure.caption) if figure.caption else title
    return f'<figure class="{_slug(name)}">{svg}<figcaption>{caption}</figcaption></figure>'


def _table(table: Table) -> str:
    """Return the table in a box of its own, which scrolls where the table is wider than the
    page.
    """
    header = list(map(inline, table.titles))
    rows = [list(map(inline, row)) for row in table.texts()]
    has_header = any(header)
    sentences = any(len(cell) > LONG_CELL for row in rows for cell in row[1:])
    kind = (
        "facts" if not has_header else "numbers" if any(header[1:2]) and not sentences else "words"
    )
    # Beside numbers, words keep to the left and break between each other, so that no number is
    # pushed off the page.
    columns = list(zip(*table.texts(), strict=True))
    names = columns[0] if columns else ()
    marks = [""] * len(header)
    if kind == "numbers" and columns:
        marks = [
            " class=text" if index and _holds_words(column) else ""
            for index, column in enumerate(columns)
        ]
    elif kind == "words":
        marks = ["" if column.unit == "text" else " class=number" for column in table.typed_columns]
    few = len(header) < (STACKED_WORDS if kind == "words" else STACKED_COLUMNS)
    wordy = (
        1 + sum(2 * len(_words_of(column)) > len(column) for column in columns[1:]) >= STACKED_WORDS
    )
    stacked = has_header and not few and (kind == "words" or wordy or len(rows) <= STACKED_ROWS)
    # Where the head of such a table is hidden, every cell names its column.
    labels = [
        f' data-title="{escape(plain(title))}"' if stacked and title else ""
        for title in table.titles
    ]
    attributes = [mark + label for mark, label in zip(marks, labels, strict=True)][1:]
    titles = "".join(
        f"<th scope=col{mark}>{title}</th>" for title, mark in zip(header, marks, strict=True)
    )
    head = f"<thead><tr>{titles}</tr></thead>" if has_header else ""
    body = ""
    for name, (first, *cells) in zip(names, rows, strict=True):
        # A name that is empty, as under the row above, needs no title either.
        label = labels[0] if name else ""
        body += f"<tr><th scope=row{_whole(plain(name))}{label}>{first}</th>"
        body += (
            "".join(
                f"<td{of_cell}>{cell}</td>" for cell, of_cell in zip(cells, attributes, strict=True)
            )
            + "</tr>"
        )
    layout = f"{kind} stacked" if stacked else kind
    return f'<div class="scroll" tabindex="0"><table class="{layout}">{head}<tbody>{body}</tbody></table></div>'


def _holds_words(column: Sequence[str]) -> bool:
    """Return True for a column most of whose cells are words, or more words than numbers, and
    longer than a number.
    """
    words = _words_of(column)
    return len(words) > len(column) / 2 and max(map(len, words)) > LONG_WORD


def _words_of(column: Sequence[str]) -> list[str]:
    """Return the cells that are words, or more words than numbers."""
    return [text for text in map(plain, column) if text[:1].isalpha() or _has_more_letters(text)]


def _has_more_letters(text: str) -> bool:
    """Return True for a text such as `100 tokens on average`, most of whose characters are
    letters.
    """
    return sum(character.isalpha() for character in text) > len(text.replace(" ", "")) / 2


def _whole(name: str) -> str:
    """Return the mark of a row's name without blanks, which is not to break at its hyphens."""
    return " class=whole" if "-" in name and " " not in name and len(name) <= LONG_NAME else ""


def inline(text: str) -> str:
    """Return an inline text as HTML: code, bold text and safe links; all the rest is escaped."""
    return "".join(
        escape(part) if mark is None else _mark(mark)
        for part, mark in spans(" ".join(text.split()))
    )


def _mark(mark: re.Match[str]) -> str:
    if mark["code"] is not None:
        # A method's options may be cut into lines between them, and nowhere else.
        return f"<code>{escape(mark['code']).replace(',', ',<wbr>')}</code>"
    if mark["bold"] is not None:
        return f"<strong>{inline(mark['bold'])}</strong>"
    if not SAFE_URL.match(mark["url"]):
        return escape(mark[0])
    return f'<a href="{escape(mark["url"])}">{inline(mark["link"])}</a>'


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower())


COLOUR_NAMES = {
    **{colour.lower(): f"var(--c{index})" for index, colour in enumerate(OF_METHODS)},
    BLACK: "var(--text)",
    GREY: "var(--faint)",
    "#ffffff": "var(--back)",
    "#b0b0b0": "var(--line)",
    "#cccccc": "var(--line)",
}
COLOUR = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
PREAMBLE = re.compile(r"^.*?(?=<svg\b)|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL)
REFERENCE = re.compile(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)')


def inline_svg(text: str, name: str) -> str:
    """Return a drawing as part of a page: its colours follow the page's, and its ids are unique by
    `name`.
    """
    text = PREAMBLE.sub("", text)
    text = REFERENCE.sub(f"{_slug(name)}-", text)
    text = re.sub(
        r'<svg\b[^>]*?(viewBox="[^"]*")[^>]*>',
        r'<svg \1 xmlns:xlink="http://www.w3.org/1999/xlink">',
        text,
        count=1,
    )
    return COLOUR.sub(lambda colour: COLOUR_NAMES.get(colour[0].lower(), colour[0]), text)
