"""The bridge for reports that still make Markdown: their text as one self-contained HTML page.

It knows the forms that the reports are written in and no others; all text in them is escaped first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from specbench_kit.reports.render_html import inline_svg, shell
from specbench_kit.reports.writing.html_style import CSS
from specbench_kit.reports.writing.markup import CELLS

SENTENCE = 80
"""Characters of a cell that is no number."""
__all__ = ["inline", "inline_svg", "page"]
IMAGE = re.compile(r"^!\[(?P<title>.*)\]\((?P<path>[^)]*)\)$")
CAPTION = re.compile(r"^\*(?P<text>[^*].*)\*$")
QUOTED = re.compile(r"\\([<(])")
INLINE = re.compile(
    rf"`(?P<code>[^`]+)`|{QUOTED.pattern}|\*\*(?P<bold>.+?)\*\*|\[(?P<text>[^\]]*)\]\((?P<url>[^)\s]+)\)"
)
HEADING = re.compile(r"^(#{1,4}) (.*)$")
SAFE_URL = re.compile(r"^(https://ui\.perfetto\.dev|[\w.-][\w./-]*)$")


def page(markdown: str, drawings: Mapping[str, str]) -> str:
    """The page; `drawings` are SVG texts by the path that the Markdown names, less its suffix."""
    lines = markdown.splitlines()
    title = next((_text(line[2:]) for line in lines if line.startswith("# ")), "Report")
    body = "\n".join(_blocks(lines, drawings))
    return shell(title, f"<main>\n{body}\n</main>", CSS, scripted=True)


def _text(markdown: str) -> str:
    return QUOTED.sub(r"\1", markdown.replace("`", "").replace("**", ""))


def _blocks(lines: Sequence[str], drawings: Mapping[str, str]) -> Iterator[str]:
    """One piece of HTML per block; pictures that follow each other share a grid."""
    gallery: list[str] = []
    for block in _split(lines):
        picture = _picture(block, drawings)
        if picture:
            gallery.append(picture)
            continue
        if gallery:
            yield f'<div class="figures">{"".join(gallery)}</div>'
            gallery = []
        yield _block(block)
    if gallery:
        yield f'<div class="figures">{"".join(gallery)}</div>'


def _split(lines: Sequence[str]) -> Iterator[list[str]]:
    """Blocks: code with its fences, a tag that opens or closes a fold, or lines up to an empty one."""
    block: list[str] = []
    fence = ""
    for line in lines:
        if fence:
            block.append(line)
            if line == fence:
                fence = ""
                yield block
                block = []
        elif opening := re.match(r"^(`{3,})text$", line):
            fence, block = opening[1], [line]
        elif line in ("<details>", "</details>") or line.startswith("<summary>") or not line:
            if block:
                yield block
            block = []
            if line:
                yield [line]
        else:
            block.append(line)
    if block:
        yield block


def _block(block: Sequence[str]) -> str:
    first = block[0]
    if heading := HEADING.match(first):
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>"
    if first in ("<details>", "</details>"):
        return first
    if first.startswith("<summary>"):
        return f"<summary>{inline(first.removeprefix('<summary>').removesuffix('</summary>'))}</summary>"
    if first.startswith("```"):
        return f"<pre>{escape(chr(10).join(block[1:-1]))}</pre>"
    if first.startswith("|"):
        return _table(block)
    if first.startswith("- "):
        return f"<ul>{''.join(f'<li>{inline(line[2:])}</li>' for line in block)}</ul>"
    if first.startswith("> "):
        return _warning(block)
    return f"<p>{inline(' '.join(block))}</p>"


def _warning(block: Sequence[str]) -> str:
    lines = [line.removeprefix(">").strip() for line in block]
    items = "".join(f"<li>{inline(line)}</li>" for line in lines if line and line != "[!WARNING]")
    return f'<aside class="warning" role="note"><ul>{items}</ul></aside>'


def _table(block: Sequence[str]) -> str:
    """In a box of its own that scrolls where the table is wider than the page."""
    header, _, *rows = ([_cell(cell) for cell in CELLS.split(line)[1:-1]] for line in block)
    facts = not any(header)
    head = "" if facts else f"<thead><tr>{''.join(f'<th scope=col>{cell}</th>' for cell in header)}</tr></thead>"
    body = "".join(_row(row) for row in rows)
    sentences = any(len(cell) > SENTENCE for row in rows for cell in row[1:])
    kind = "facts" if facts else "numbers" if any(header[1:2]) and not sentences else "words"
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str]) -> str:
    return f"<tr><th scope=row>{cells[0]}</th>{''.join(f'<td>{cell}</td>' for cell in cells[1:])}</tr>"


def _cell(text: str) -> str:
    return inline(text.strip().replace("\\|", "|"))


def inline(text: str) -> str:
    """Code, bold text and links; everything else as it stands."""
    parts, end = [], 0
    for found in INLINE.finditer(text):
        parts.append(escape(text[end : found.start()]))
        parts.append(_mark(found))
        end = found.end()
    return "".join([*parts, escape(text[end:])])


def _mark(found: re.Match[str]) -> str:
    if found["code"] is not None:
        return f"<code>{escape(found['code'])}</code>"
    if found[2] is not None:
        return escape(found[2])
    if found["bold"] is not None:
        return f"<strong>{inline(found['bold'])}</strong>"
    if not SAFE_URL.match(found["url"]):
        return escape(found[0])
    return f'<a href="{escape(found["url"])}">{inline(found["text"])}</a>'


def _picture(block: Sequence[str], drawings: Mapping[str, str]) -> str:
    """A picture that is there to be inlined, with its caption; nothing for any other block."""
    image = IMAGE.match(block[0])
    if not image or (name := image["path"].rpartition(".")[0]) not in drawings:
        return ""
    caption = CAPTION.match(" ".join(block[1:])) if len(block) > 1 else None
    title = escape(_text(image["title"]))
    text = f"<figcaption>{inline(caption['text']) if caption else title}</figcaption>"
    label = f' role="img" aria-label="{title}"'
    svg = drawings[name].replace("<svg ", f"<svg{label} ", 1)
    return f'<figure class="{_slug(name)}">{svg}{text}</figure>'


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower())
