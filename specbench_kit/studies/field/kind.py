"""Tables that others published, predicted, as a kind of study."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.field import report
from specbench_kit.studies.field.summary import FieldSummary

if TYPE_CHECKING:
    from rich.console import Console

FieldStudy = Study[RunDescription, FieldSummary]


class FieldKind(StudyKind[RunDescription, FieldSummary]):
    """Measurements of others beside the kit's predictions."""

    command = "field"
    description = RunDescription
    result = FieldSummary
    page = "README"

    def headline(self, study: FieldStudy) -> str:
        """Return how many numbers come out, and how far the others are off."""
        return report.headline(study.result)

    def cautions(self, study: FieldStudy) -> list[str]:
        """Return where the kit should not be believed."""
        return report.cautions(study.result)

    def document(self, study: FieldStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.result, figures)

    def pictures(self, study: FieldStudy) -> Iterable[Picture]:
        """Return predictions against measurements, and how far each table is off."""
        return report.pictures(study.result)

    def setting(self, study: FieldStudy) -> str:
        """Return what was compared."""
        return "modelled time; measured by others, each with an engine of its own"

    def files(self, study: FieldStudy) -> Tables:
        """Return a row per number."""
        return {
            "numbers.csv": [
                {
                    "table": name,
                    **to_builtins(cell),
                    "predicted_over_measured": cell.ratio,
                    "inside": cell.inside,
                }
                for name, table in study.result.tables.items()
                for cell in table.cells
            ]
        }

    def print(self, console: "Console", study: FieldStudy) -> None:
        """Print the sentence and a line per table, or all numbers of a single one."""
        render_terminal.show(console, report.terminal(study.result))


FIELD_STUDY = FieldKind()
KINDS = (FIELD_STUDY,)
