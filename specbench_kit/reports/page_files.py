"""A report as `report.md` and as `report.html`, a page that holds its figures and needs no network."""

from pathlib import Path

from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.document import Document
from specbench_kit.runs.folder import write_text


def write_page(folder: Path, document: Document) -> None:
    """Write both files; the figures are expected as SVG in `plots/` beside them."""
    drawings = {
        f"plots/{path.stem}": render_html.inline_svg(path.read_text(encoding="utf-8"), path.stem)
        for path in (folder / "plots").glob("*.svg")
    }
    write_text(folder / "report.md", render_markdown.render(document))
    write_text(folder / "report.html", render_html.render(document, drawings))
