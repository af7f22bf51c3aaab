"""A simulation's report as files: Markdown, one HTML page, and plots."""

from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.document import Figure
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.serving.plots import pictures
from specbench_kit.reports.serving.report import serving_report
from specbench_kit.reports.stored import RunFile, Summary
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.runs.folder import replace_file, write_text


def write_reports(folder: Path, run: RunFile, summary: Summary) -> None:
    """Write `report.md`, `report.html`, and `plots/` as PNG and SVG."""
    figures, drawings, config = [], {}, run["config"]
    where = f"{config['seeds']} seeds of {config['duration_s']:g} simulated s, {time_kind(run)}"
    for picture in pictures(run, summary):
        drawn, path = draw(picture, where, ("png", "svg")), f"plots/{picture.name}"
        try:
            for suffix, content in drawn.items():
                replace_file(folder / f"{path}.{suffix}", content)
        except OSError as error:
            raise SkitError(f"cannot write {folder / path}: {error.strerror or error}") from error
        drawings[path] = render_html.inline_svg(drawn["svg"].decode(), picture.name)
        figures.append(Figure(picture.title, f"{path}.png", f"{picture.title}. {picture.note}"))
    links = [path.name for path in sorted(folder.glob("timeline-*.json"))]
    links += ["events/"] if (folder / "events").is_dir() else []
    document = serving_report(run, summary, figures, links)
    write_text(folder / "report.md", render_markdown.render(document))
    write_text(folder / "report.html", render_html.render(document, drawings))
