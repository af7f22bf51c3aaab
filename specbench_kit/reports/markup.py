"""Markdown building blocks that every report shares."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; line breaks and bars in cells do no harm."""
    rules = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in [header, rules, *rows])


def warning(lines: Sequence[str]) -> str:
    """A box that GitHub shows as a warning; nothing for no lines."""
    return "> [!WARNING]\n" + "\n>\n".join(f"> **{line}**" for line in lines) if lines else ""


def code(text: str) -> str:
    """Inline code."""
    return f"`{text}`"


def fence(text: str) -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}text\n{text}\n{mark}"


def folded(title: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
