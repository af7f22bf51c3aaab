"""A plan as a kind of study."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.core.typed_json import flat
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import count
from specbench_kit.studies.planning import report
from specbench_kit.studies.planning.report import PlanDescription
from specbench_kit.studies.planning.summary import PlanSummary

if TYPE_CHECKING:
    from rich.console import Console

PlanStudy = Study[PlanDescription, PlanSummary]


class PlanKind(StudyKind[PlanDescription, PlanSummary]):
    """The cheapest fleet that keeps a promise."""

    command = "plan"
    description = PlanDescription
    result = PlanSummary

    def headline(self, study: PlanStudy) -> str:
        """Return what to rent."""
        return report.headline(study.result)

    def cautions(self, study: PlanStudy) -> list[str]:
        """Return what limits the plan."""
        return report.cautions(study.run, study.result)

    def document(self, study: PlanStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result, figures)

    def pictures(self, study: PlanStudy) -> Iterable[Picture]:
        """Return the rent over the promised speed."""
        return [report.pareto(study.result)]

    def setting(self, study: PlanStudy) -> str:
        """Return the devices and the promise."""
        summary = study.result
        return f"{count(summary.devices)} devices, {slo_in_words(summary.slo)}, modelled time"

    def files(self, study: PlanStudy) -> Tables:
        """Return a row per way to decode with its cheapest fleet, and one per configuration that
        was simulated.
        """
        summary = study.result
        fleets = [flat(to_builtins(fleet)) for fleet in summary.fleets.values() if fleet]
        return {"fleets.csv": fleets, "candidates.csv": to_builtins(summary.candidates)}

    def print(self, console: "Console", study: PlanStudy) -> None:
        """Print the sentence to act on, and what it rests on."""
        render_terminal.show(console, report.terminal(study.run, study.result))


PLAN = PlanKind()
KINDS = (PLAN,)
