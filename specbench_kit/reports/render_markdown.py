"""Documents as Markdown that can be pasted into a pull request."""

import re
from collections.abc import Iterable, Sequence

from specbench_kit.reports.document import (
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
)

CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
FOREIGN_LINK = re.compile(r"\]\((?!https://ui\.perfetto\.dev\)|[\w.-][\w./-]*\))")
"""The middle of a link or a picture that leads to another host, as no report of the kit has."""


def render(document: Document) -> str:
    """Return the document as a Markdown file."""
    return blocks([Heading(document.title, 1), *document.blocks]) + "\n"


def blocks(parts: Iterable[Block]) -> str:
    """Return blocks as Markdown, without a line break at the end."""
    return "\n\n".join(map(_block, parts))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of texts, for a page that is not made as a document."""
    return blocks([Table(header, [list(map(str, row)) for row in rows])])


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_inline(block.text)}"
        case Paragraph() | Note():
            return _inline(block.text)
        case Caution():
            return "> [!WARNING]\n" + "\n>\n".join(f"> **{_inline(line)}**" for line in block.lines)
        case BulletList():
            return "\n".join(f"- {_inline(item)}" for item in block.items)
        case CodeBlock():
            # The fence is longer than any run of backticks in the text, so that none of them can
            # close it.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}text\n{block.text}\n{fence}"
        case Figure():
            return _picture(block) + (f"\n*{_inline(block.caption)}*" if block.caption else "")
        case FigureRow():
            return " ".join(map(_picture, block.figures))
        case Table():
            lines = [block.titles, ["---"] * len(block.columns), *block.texts()]
            return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        case Folded():
            return f"<details>\n<summary>{_inline(block.title)}</summary>\n\n{blocks(block.blocks)}\n\n</details>"


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _picture(figure: Figure) -> str:
    return f"![{_inline(figure.title)}]({figure.path})"


def _inline(text: str) -> str:
    """Return the text as one line in which, outside of code, no tag is a tag and no link leads to
    another host.
    """
    parts = []
    end = 0
    text = " ".join(text.split())
    for code in CODE.finditer(text):
        parts += [_neutral(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _neutral(text[end:])])


def _neutral(text: str) -> str:
    return FOREIGN_LINK.sub(r"]\(", text.replace("<", r"\<"))
