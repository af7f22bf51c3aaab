"""A comparison as files: Markdown, HTML, CSV, LaTeX and plots."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics import setting
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.reports.comparison import markdown as comparison_markdown
from specbench_kit.reports.comparison import plots
from specbench_kit.reports.comparison.latex import to_latex
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.comparison.tables import to_csv
from specbench_kit.reports.comparison.wording import where
from specbench_kit.reports.run import markdown
from specbench_kit.reports.writing import html
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.markup import code, folded
from specbench_kit.reports.writing.safe_svg import safe_svg
from specbench_kit.reports.writing.wording import time_kind
from specbench_kit.runs.folder import replace_file

ALL = ("md", "html", "csv", "latex", "png", "svg")
FIGURES = ("png", "svg", "pdf")
KNOWN = (*ALL, "pdf")
PLOTS = "plots"
BESIDE = ("plots/timeline.png", "timeline.json", "tokens/index.html")
"""What a run directory may hold that its report links to."""


def write_reports(
    comparison: Comparison,
    folder: Path,
    formats: Sequence[str] = ALL,
    decode: Callable[[list[int]], str] | None = None,
    hint: str = "choose another --out",
    look: Look = USUAL,
) -> list[Path]:
    """Write the report into `folder` in these formats, each file whole or not at all; the paths of what was written.

    A single run's report has all of that run; `decode` gives it the text of a prompt. `hint` says what to do where the
    folder cannot be written.
    """
    require_formats(formats)
    try:
        return list(Content(comparison, folder, formats, decode, look).write())
    except OSError as error:
        raise SkitError(f"cannot write the report in {folder}: {error.strerror or error}; {hint}") from error


def require_formats(formats: Sequence[str]) -> None:
    """At least one, and known ones only."""
    unknown = [name for name in formats if name not in KNOWN]
    if unknown or not formats:
        wrong = f"unknown report format '{unknown[0]}'" if unknown else "no report format is given"
        raise SkitError(f"{wrong}; known: {', '.join(KNOWN)}")


class Content:
    """One report: every figure is drawn once, and the page is made of the Markdown."""

    def __init__(
        self,
        comparison: Comparison,
        folder: Path,
        formats: Sequence[str],
        decode: Callable[[list[int]], str] | None,
        look: Look = USUAL,
    ) -> None:
        self.comparison, self.folder, self.formats, self.decode = comparison, folder, formats, decode
        self.look = look
        self.plot_formats = [suffix for suffix in FIGURES if suffix in formats]
        self.drawings: dict[str, str] = {}
        """SVG texts for the page, by their path in the Markdown."""

    def write(self) -> Iterator[Path]:
        """Every file's path as it is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        timelines: list[str] = []
        if self.plot_formats or "html" in self.formats:
            for picture in plots.pictures(self.comparison):
                yield from self._draw(picture)
                lines += [f"![{picture.title}]({self._path(picture.name)})\n*{picture.title}. {picture.note}*"]
            for run in self.comparison.runs:
                yield from self._copy_timeline(run, timelines)
        if timelines:
            lines.append(folded("Timelines of the first rounds of one request", "\n\n".join(timelines)))
        yield from self._write_texts(lines)

    def _draw(self, picture: Picture) -> Iterator[Path]:
        suffixes = {*self.plot_formats, *(["svg"] if "html" in self.formats else [])}
        drawn = draw(picture, where(self.comparison), sorted(suffixes), bare=self.look.bare, size=self.look.size)
        yield from self._keep(picture.name, drawn)

    def _keep(self, name: str, drawn: Mapping[str, bytes]) -> Iterator[Path]:
        """Files for the formats that were asked for, and the SVG for the page."""
        if "svg" in drawn:
            self.drawings[f"{PLOTS}/{name}"] = html.inline_svg(drawn["svg"].decode(), name)
        for suffix in self.plot_formats:
            if suffix in drawn:
                path = self.folder / PLOTS / f"{name}.{suffix}"
                replace_file(path, drawn[suffix])
                yield path

    def _path(self, name: str) -> str:
        return f"{PLOTS}/{name}.{next(iter(self.plot_formats), 'svg')}"

    def _copy_timeline(self, run: BenchmarkRun, lines: list[str]) -> Iterator[Path]:
        """The picture of a run's timeline; in the run's own folder it lies already."""
        found = {file.suffix[1:]: file.read_bytes() for file in sorted((run.path / PLOTS).glob("timeline.*"))}
        if not found:
            return
        if "svg" in found:
            try:
                found["svg"] = safe_svg(found["svg"])
            except ValueError as error:
                lines.append(f"Left out: the timeline of {code(run.method)} is {error}.")
                return
        if run.path.resolve() == self.folder.resolve():
            if "svg" in found:
                self.drawings[f"{PLOTS}/timeline"] = html.inline_svg(found["svg"].decode(), "timeline")
            return
        name = "timeline-" + re.sub(r"[^\w.-]+", "-", run.name)
        yield from self._keep(name, found)
        method = setting.method_label(run.fields)
        lines.append(f"![Timeline, {method}]({self._path(name)})\n*{method}, {time_kind(run.fields)}.*")

    def _write_texts(self, pictures: Sequence[str]) -> Iterator[Path]:
        """Pictures are part of the page, while the Markdown can only point to files."""
        makers: dict[str, tuple[str, Callable[[], str]]] = {
            "md": ("report.md", lambda: self._markdown(pictures if self.plot_formats else ())),
            "html": ("report.html", lambda: html.page(self._markdown(pictures), self.drawings)),
            "csv": ("report.csv", lambda: to_csv(self.comparison)),
            "latex": ("report.tex", lambda: to_latex(self.comparison, self.look)),
        }
        for suffix, (name, make) in makers.items():
            if suffix in self.formats:
                path = self.folder / name
                replace_file(path, make().encode("utf-8", "backslashreplace"))
                yield path

    def _markdown(self, pictures: Sequence[str]) -> str:
        everywhere = f"Every figure: {where(self.comparison)}."
        figures = "\n\n".join(["## Figures", everywhere, *pictures]) if pictures else ""
        if len(self.comparison.runs) > 1:
            return comparison_markdown.render(self.comparison, figures, self.look)
        (run,) = self.comparison.runs
        own = [comparison_markdown.averages(self.comparison), comparison_markdown.repeats(self.comparison), figures]
        exports = [name for name in BESIDE if (self.folder / name).exists()]
        records, problems = run.records, self.comparison.problems
        return markdown.render(run.fields, run.summary, records, self.decode, exports, own, problems)
