"""The report on several runs, or on one, as files: Markdown, HTML, CSV, LaTeX, plots, and the
result itself.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics import result_file, setting
from specbench_kit.metrics.result import Comparison, RunResult
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.comparison import plots, report
from specbench_kit.reports.comparison.report import USUAL, Look
from specbench_kit.reports.comparison.tables import to_csv, to_latex
from specbench_kit.reports.comparison.wording import where
from specbench_kit.reports.document import (
    Block,
    Blocks,
    Document,
    Figure,
    Folded,
    Heading,
    Paragraph,
    code,
)
from specbench_kit.reports.page_files import PLOTS, PageFiles
from specbench_kit.reports.run import report as run_report
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.writing.drawing import safe_svg

ALL = ("md", "html", "csv", "latex", "json", "png", "svg")
KNOWN = (*ALL, "pdf")
LINKED = ("plots/timeline.png", "timeline.json", "tokens/index.html")
"""Files of a run directory that its report links to if they exist."""


def write_reports(
    comparison: Comparison,
    folder: Path,
    formats: Sequence[str] = ALL,
    hint: str = "choose another --out",
    look: Look = USUAL,
) -> list[Path]:
    """Write the report into `folder` in these formats and return the paths of its files.

    Each file is written whole or not at all. A comparison of one run has that run's own report.
    `hint` says what to do if the folder cannot be written.
    """
    require_formats(formats)
    try:
        return list(_ReportFiles(comparison, folder, formats, look).write())
    except OSError as error:
        raise SkitError(
            f"cannot write the report in {folder}: {error.strerror or error}; {hint}"
        ) from error


def require_formats(formats: Sequence[str]) -> None:
    """Raise SkitError for an unknown format, or for none at all."""
    unknown = [name for name in formats if name not in KNOWN]
    if unknown or not formats:
        problem = (
            f"unknown report format '{unknown[0]}'" if unknown else "no report format is given"
        )
        raise SkitError(f"{problem}; known: {', '.join(KNOWN)}")


class _ReportFiles:
    """The files of one report."""

    def __init__(
        self, comparison: Comparison, folder: Path, formats: Sequence[str], look: Look
    ) -> None:
        self.comparison = comparison
        self.formats = formats
        self.look = look
        self.files = PageFiles(folder, formats, where(comparison), bare=look.bare, size=look.size)

    def write(self) -> Iterator[Path]:
        """Yield every file's path as it is written."""
        files = self.files
        files.folder.mkdir(parents=True, exist_ok=True)
        timelines: list[Block] = []
        if files.has_pictures:
            for picture in plots.pictures(self.comparison):
                yield from files.draw(picture)
            for run, path in zip(self.comparison.runs, self.comparison.folders, strict=False):
                yield from self._copy_timeline(run, Path(path), timelines)
        figures: list[Block] = [*files.figures]
        if timelines:
            figures.append(Folded("Timelines of the first rounds of one request", timelines))
        if figures:
            figures = [
                Heading("Figures"),
                Paragraph(f"Every figure: {where(self.comparison)}."),
                *figures,
            ]
        # Pictures are part of the page, while the Markdown can only point to files.
        texts: dict[str, tuple[str, Callable[[], str]]] = {
            "md": (
                "report.md",
                lambda: render_markdown.render(self._document(figures if files.suffixes else ())),
            ),
            "html": (
                "report.html",
                lambda: render_html.render(self._document(figures), files.drawings),
            ),
            "csv": ("report.csv", lambda: to_csv(self.comparison)),
            "latex": ("report.tex", lambda: to_latex(self.comparison, self.look)),
            "json": (result_file.NAME, lambda: result_file.to_json(self.comparison)),
        }
        for name, make in (texts[suffix] for suffix in texts if suffix in self.formats):
            yield files.write(name, make())

    def _copy_timeline(self, run: RunResult, path: Path, blocks: list[Block]) -> Iterator[Path]:
        """Copy the picture of a run's timeline from the run's folder, unless the report is written
        into that.
        """
        drawn = {
            file.suffix[1:]: file.read_bytes() for file in sorted((path / PLOTS).glob("timeline.*"))
        }
        if "svg" in drawn:
            try:
                drawn["svg"] = safe_svg(drawn["svg"])
            except ValueError as error:
                blocks.append(
                    Paragraph(f"Left out: the timeline of {code(run.method)} is {error}.")
                )
                return
        if path.resolve() == self.files.folder.resolve():
            if "svg" in drawn:
                self.files.keep("timeline", drawn["svg"])
        elif drawn:
            name = "timeline-" + re.sub(r"[^\w.-]+", "-", run.name)
            yield from self.files.write_picture(name, drawn)
            method = setting.method_label(run.fields)
            caption = f"{method}, {time_kind(run.fields)}."
            blocks.append(Figure(f"Timeline, {method}", self.files.path(name), caption))

    def _document(self, figures: Blocks) -> Document:
        return document(self.comparison, figures, self.look, exports_in(self.files.folder))


def exports_in(folder: Path) -> list[str]:
    """Return the files in the folder of a run that its report links to."""
    return [name for name in LINKED if (folder / name).exists()]


def document(
    comparison: Comparison, figures: Blocks = (), look: Look = USUAL, exports: Sequence[str] = ()
) -> Document:
    """Return the page of a comparison; that of one run has a form of its own, with its `exports`."""
    if len(comparison.runs) > 1:
        return report.build(comparison, figures, look)
    (run,) = comparison.runs
    further = [*report.averages(comparison), *report.repeats(comparison), *figures]
    return run_report.build(run, exports, further, comparison.problems)
