"""Markdown building blocks that every report shares."""

import re
from collections.abc import Callable, Iterable, Sequence

CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
CELLS = re.compile(r"(?<!\\)\|")
OUTSIDE = re.compile(r"\]\((?!https://ui\.perfetto\.dev\)|[\w.-][\w./-]*\))")
"""A link or a picture that no report of the kit has: to another host."""
FENCED = re.compile(r"^(`{3,})text\n.*?^\1$", re.DOTALL | re.MULTILINE)
FOLDS = ("<details>", "</details>")


def document(sections: Iterable[str]) -> str:
    """A report of the sections that are not empty.

    What its texts quote may come from files of somebody else: no tag in them is one, and no link leads away.
    """
    return _between(FENCED, "\n\n".join(filter(None, sections)) + "\n", _neutral_blocks)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; line breaks and bars in cells do no harm."""
    rules = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in [header, rules, *rows])


def warning(lines: Sequence[str]) -> str:
    """A box that GitHub shows as a warning; nothing for no lines."""
    return "> [!WARNING]\n" + "\n>\n".join(f"> **{line}**" for line in lines) if lines else ""


def code(text: str) -> str:
    """Inline code."""
    return "`" + text.replace("`", "'") + "`"


def fence(text: str) -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}text\n{text}\n{mark}"


def folded(title: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def _between(kept: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """The text with everything changed that does not match."""
    parts, end = [], 0
    for found in kept.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def _neutral_blocks(text: str) -> str:
    return "\n\n".join(map(_neutral_block, text.split("\n\n")))


def _neutral_block(block: str) -> str:
    """Line by line or, in a paragraph, as a whole: code may run over the end of a line."""
    apart = block.lstrip("\n").startswith(("|", ">", "-", "#", "<", "!["))
    return "\n".join(map(_neutral_line, block.split("\n"))) if apart else _neutral(block)


def _neutral_line(line: str) -> str:
    if line in FOLDS:
        return line
    if line.startswith("<summary>"):
        return f"<summary>{_neutral(line.removeprefix('<summary>').removesuffix('</summary>'))}</summary>"
    return "|".join(map(_neutral, CELLS.split(line))) if line.startswith("|") else _neutral(line)


def _neutral(text: str) -> str:
    return _between(CODE, text, _plain)


def _plain(text: str) -> str:
    return OUTSIDE.sub(r"]\(", text.replace("<", r"\<"))


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
