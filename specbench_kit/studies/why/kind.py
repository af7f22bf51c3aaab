"""Why speculation is slow or fast, as a kind of study."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.studies.why import report
from specbench_kit.studies.why.report import WhyDescription
from specbench_kit.studies.why.summary import WhySummary

if TYPE_CHECKING:
    from rich.console import Console

WhyStudy = Study[WhyDescription, WhySummary]


class WhyKind(StudyKind[WhyDescription, WhySummary]):
    """A server whose speculation was taken apart."""

    command = "why"
    description = WhyDescription
    result = WhySummary

    def headline(self, study: WhyStudy) -> str:
        """Return whether speculation pays."""
        return report.headline(study.result)

    def cautions(self, study: WhyStudy) -> list[str]:
        """Return what limits the numbers."""
        return report.cautions(study.result)

    def document(self, study: WhyStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result, figures)

    def pictures(self, study: WhyStudy) -> Iterable[Picture]:
        """Return a round beside plain tokens, where both are known."""
        return report.pictures(study.result)

    def setting(self, study: WhyStudy) -> str:
        """Return what was asked."""
        return report.setting(study.run)

    def files(self, study: WhyStudy) -> Tables:
        """Return a row per number, per finding, and per timed answer."""
        result = study.result
        numbers = to_builtins(result.numbers)
        return {
            "numbers.csv": [
                {
                    "number": name,
                    "value": value["value"] if value else None,
                    "source": value["source"] if value else result.missing.get(name, ""),
                }
                for name, value in numbers.items()
            ],
            "findings.csv": [to_builtins(finding) for finding in result.findings],
            "answers.csv": [to_builtins(answer) for answer in result.answers],
        }

    def print(self, console: "Console", study: WhyStudy) -> None:
        """Print the verdict, the findings and the main numbers."""
        render_terminal.show(console, report.terminal(study.result))


WHY = WhyKind()
KINDS = (WHY,)
