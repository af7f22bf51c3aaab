"""Two servers side by side as a kind of study."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.plain_text import CsvRow
from specbench_kit.core.typed_json import flat
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.report import AbDescription
from specbench_kit.studies.ab.summary import AbSummary

if TYPE_CHECKING:
    from rich.console import Console

AbStudy = Study[AbDescription, AbSummary]


class AbKind(StudyKind[AbDescription, AbSummary]):
    """Two servers that were asked the same prompts in turns, or two files of such measurements."""

    command = "ab"
    description = AbDescription
    result = AbSummary

    def headline(self, study: AbStudy) -> str:
        """Return which server is faster."""
        return report.headline(study.result)

    def cautions(self, study: AbStudy) -> list[str]:
        """Return what limits the comparison."""
        return report.all_cautions(study.run, study.result)

    def document(self, study: AbStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result, figures)

    def pictures(self, study: AbStudy) -> Iterable[Picture]:
        """Return the ratios of all figures, if there are any."""
        compared = any(
            entry.typical is not None for load in study.result.loads for entry in load.comparisons
        )
        return [report.ratios(study.result)] if compared else []

    def setting(self, study: AbStudy) -> str:
        """Return the prompts and the lengths."""
        return report.where(study.run)

    def files(self, study: AbStudy) -> Tables:
        """Return a row per load and figure, with the ratio of both servers, and a row per load and
        server.
        """
        return {
            "ratios.csv": list(_ratios(study.result)),
            "servers.csv": list(_servers(study.result)),
        }

    def print(self, console: "Console", study: AbStudy) -> None:
        """Print the verdict, both servers side by side, and what limits the comparison."""
        render_terminal.show(console, report.terminal(study.run, study.result))


def _ratios(summary: AbSummary) -> Iterator[CsvRow]:
    for load in summary.loads:
        for entry in load.comparisons:
            yield {"load": load.load, **flat(to_builtins(entry))}


def _servers(summary: AbSummary) -> Iterator[CsvRow]:
    for load in summary.loads:
        for name, figures in load.servers.items():
            yield {"load": load.load, "server": name, **flat(to_builtins(figures))}


AB = AbKind()
KINDS = (AB,)
