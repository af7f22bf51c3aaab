"""How `skit list` prints what it lists."""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from specbench_kit.core.plain_text import one_line

GAP = 2
LONGEST_NAME = 0.3
"""Of the terminal's width: what has a longer one is told below it."""
BOLD, ITALIC = "1", "3"
"""Styles of a terminal, by ANSI's numbers."""


def print_list(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Names, and what is said of them beside or below."""
    print(_styled(kind, ITALIC))
    names = [one_line(row["name"]) for row in rows]
    columns = get_terminal_size().columns
    width = max((len(name) for name in names if len(name) <= columns * LONGEST_NAME), default=0) + GAP
    group = ""
    for name, row in zip(names, rows, strict=True):
        if row.get("group", group) != group:
            group = row["group"]
            print(_styled(f"[{group}]", BOLD))
        options = ", ".join(f"{key}={value}" for key, value in row.get("options", {}).items())
        missing = row.get("missing") and f"NOT HERE: it {row['missing']}."
        words = " ".join(filter(None, (row["summary"], options and f"({options})", _needs(row), missing)))
        lines = wrap(one_line(words), max(columns - width, 1), break_on_hyphens=False)
        if len(name) + GAP > width:
            lines.insert(0, "")
        for before, line in zip_longest([name], lines, fillvalue=""):
            print(f"{before:{width}}{line}".rstrip())


def _styled(text: str, style: str) -> str:
    """Only a terminal gets a style; rich, which would see to all of this, takes longer to load than a list to print."""
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def _needs(row: Mapping[str, Any]) -> str:
    return f"Needs {'; '.join(row['needs'])}." if row.get("needs") else ""
