"""Published experiments, reproduced, as a kind of study."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.typed_json import convert, flat
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.reproduction import report
from specbench_kit.studies.reproduction.reproduction import (
    SUMMARY,
    ReproductionSummary,
    judged_again,
)
from specbench_kit.studies.reproduction.wording import totals

if TYPE_CHECKING:
    from rich.console import Console

ReproductionStudy = Study[RunDescription, ReproductionSummary]


class ReproductionKind(StudyKind[RunDescription, ReproductionSummary]):
    """Numbers that papers print, beside ours; a page over all, and one for each paper."""

    command = "reproduce"
    description = RunDescription
    result = ReproductionSummary
    summary = SUMMARY
    page = "README"

    def found(self, run: RunDescription, content: object, folder: Path) -> ReproductionSummary:
        """Return the simulated numbers, judged by the rules of today."""
        return judged_again(convert(ReproductionSummary, content))

    def headline(self, study: ReproductionStudy) -> str:
        """Return how many numbers come out."""
        return f"{totals(list(study.result.experiments.values())).capitalize()}."

    def cautions(self, study: ReproductionStudy) -> list[str]:
        """Return which inputs were changed; what else limits a number stands beside it."""
        return report.changed_inputs(list(study.result.experiments.values()))

    def document(self, study: ReproductionStudy, figures: Sequence[Figure]) -> Document:
        """Return the page over all experiments."""
        return report.overview(list(study.result.experiments.values()), figures)

    def pages(
        self, study: ReproductionStudy, folder: Path, formats: Sequence[str]
    ) -> Iterable[Path]:
        """Write the page over all experiments, a page for each paper, and their figures."""
        return report.write(folder, list(study.result.experiments.values()), formats)

    def files(self, study: ReproductionStudy) -> Tables:
        """Return a row per published number."""
        rows = [
            {"experiment": name, **flat(to_builtins(pair))}
            for name, experiment in study.result.experiments.items()
            for pair in experiment.published
        ]
        return {"numbers.csv": rows}

    def print(self, console: "Console", study: ReproductionStudy) -> None:
        """Print how many numbers of each paper come out."""
        report.print_totals(console, list(study.result.experiments.values()))


REPRODUCTION = ReproductionKind()
KINDS = (REPRODUCTION,)
