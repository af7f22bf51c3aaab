"""A simulation's report as files: Markdown, one HTML page, and plots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.reports.serving.plots import pictures
from specbench_kit.reports.serving.report import render
from specbench_kit.reports.writing import html
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.reports.writing.wording import time_kind
from specbench_kit.runs.folder import replace_file, write_text

Fields = Mapping[str, Any]
PLOTS = "plots"


def write_reports(folder: Path, run: Fields, summary: Fields) -> None:
    """`report.md`, `report.html`, and `plots/` as PNG and SVG."""
    lines: list[str] = []
    drawings: dict[str, str] = {}
    for picture in pictures(run, summary):
        drawn = draw(picture, where(run), ("png", "svg"))
        for suffix, content in drawn.items():
            _write(folder / PLOTS / f"{picture.name}.{suffix}", content)
        drawings[f"{PLOTS}/{picture.name}"] = html.inline_svg(drawn["svg"].decode(), picture.name)
        lines.append(f"![{picture.title}]({PLOTS}/{picture.name}.png)\n*{picture.title}. {picture.note}*")
    links = [path.name for path in sorted(folder.glob("timeline-*.json"))]
    links += ["events/"] if (folder / "events").is_dir() else []
    text = render(run, summary, lines, links)
    write_text(folder / "report.md", text)
    write_text(folder / "report.html", html.page(text, drawings))


def where(run: Fields) -> str:
    """What every figure stands on."""
    config = run["config"]
    return f"{config['seeds']} seeds of {config['duration_s']:g} simulated s, {time_kind(dict(run))}"


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}") from error
