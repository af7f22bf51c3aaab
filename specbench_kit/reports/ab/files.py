"""The files of the report of `skit ab`: Markdown, a page, and the picture."""

from pathlib import Path

from specbench_kit.metrics.ab.summary import AbSummary
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.ab.plots import ratios
from specbench_kit.reports.ab.report import build
from specbench_kit.reports.document import Figure
from specbench_kit.reports.stored import RunFile
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.runs.folder import replace_file, write_text

PLOTS = "plots"


def write(folder: Path, run: RunFile, summary: AbSummary) -> Path:
    """Write the report into the run's folder and return the path of its Markdown."""
    figure, drawings = None, {}
    if any(entry.ratio is not None for load in summary.loads for entry in load.comparisons):
        picture = ratios(summary)
        name = f"{PLOTS}/{picture.name}"
        drawn = draw(picture, _where(run), ("png", "svg"))
        for suffix, content in drawn.items():
            replace_file(folder / f"{name}.{suffix}", content)
        figure = Figure(picture.title, f"{name}.png", picture.note)
        drawings[name] = render_html.inline_svg(drawn["svg"].decode(), picture.name)
    document = build(run, summary, figure)
    write_text(folder / "report.md", render_markdown.render(document))
    write_text(folder / "report.html", render_html.render(document, drawings))
    return folder / "report.md"


def _where(run: RunFile) -> str:
    dataset, config = run.get("dataset") or {}, run.get("config") or {}
    return (
        f"{dataset.get('count')} prompts of {dataset.get('name')}, up to {config.get('max_new_tokens')} output tokens"
    )
