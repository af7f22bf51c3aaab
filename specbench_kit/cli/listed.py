"""Print the tables of `skit list`."""

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
"""Share of the terminal's width; the text of a longer name starts on the next line."""
BOLD, ITALIC = "1", "3"
"""ANSI codes of styles."""


def print_list(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print names in a column and their descriptions in another."""
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
        needs = row.get("needs") and f"Needs {'; '.join(row['needs'])}."
        missing = row.get("missing") and f"NOT AVAILABLE: it {row['missing']}."
        text = " ".join(filter(None, (row["summary"], options and f"({options})", needs, missing, _tried(row))))
        lines = wrap(one_line(text), max(columns - width, 1), break_on_hyphens=False)
        if len(name) + GAP > width:
            lines.insert(0, "")
        for label, line in zip_longest([name], lines, fillvalue=""):
            print(f"{label:{width}}{line}".rstrip())


def _tried(row: Mapping[str, Any]) -> str:
    """Return with which versions an adapter was run; empty for what is no adapter."""
    if "run_with" not in row:
        return ""
    return f"Run with {row['run_with']}." if row["run_with"] else "NEVER RUN against a real server."


def _styled(text: str, style: str) -> str:
    """Return the text with a style if stdout is a terminal; importing rich for it would double the time."""
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
