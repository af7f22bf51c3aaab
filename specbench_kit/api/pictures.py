"""Figures inside a notebook."""

import re
from base64 import b64encode
from html import escape
from pathlib import Path

REPORTED = re.compile(r"!\[[^\]]*\]\((plots/[^)]+)\.png\)")
"""A figure in the Markdown of a report."""


def picture(svg: bytes, title: str) -> str:
    """Return a drawing as an image that needs no file and takes no style from the notebook."""
    content = b64encode(svg).decode()
    return f'<img alt="{escape(title)}" style="max-width: 100%" src="data:image/svg+xml;base64,{content}">'


def first_picture(folder: Path) -> str:
    """Return the first figure of the report in a folder; nothing where there is none."""
    report = folder / "report.md"
    shown = REPORTED.search(report.read_text(encoding="utf-8")) if report.is_file() else None
    drawing = None if shown is None else folder / f"{shown[1]}.svg"
    if drawing is None or not drawing.is_file():
        return ""
    return picture(drawing.read_bytes(), drawing.stem)
