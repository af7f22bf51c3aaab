"""A load of a server, and the simulation of a load, as kinds of study."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from msgspec import to_builtins

from specbench_kit.core.typed_json import flat
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure, Folded, Heading
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.studies.load import report
from specbench_kit.studies.load.report import LoadDescription, LoadSummary, Validation

if TYPE_CHECKING:
    from rich.console import Console

R = TypeVar("R")
LoadStudy = Study[LoadDescription, LoadSummary]
ValidationStudy = Study[LoadDescription, Validation]


class LoadedKind(StudyKind[LoadDescription, R]):
    """What a load and its simulation share."""

    description = LoadDescription

    def setting(self, study: Study[LoadDescription, R]) -> str:
        """Return the server, the policy and the promise."""
        return report.where(study.run)

    def print(self, console: "Console", study: Study[LoadDescription, R]) -> None:
        """Print the first screen of the page: what precedes the first heading, less what opens on a
        click.
        """
        opening = takewhile(
            lambda block: not isinstance(block, Heading), self.document(study, []).blocks
        )
        render_terminal.show(console, [block for block in opening if not isinstance(block, Folded)])


class LoadKind(LoadedKind[LoadSummary]):
    """Many devices at a real server."""

    command = "load"
    result = LoadSummary

    def headline(self, study: LoadStudy) -> str:
        """Return what the server did under the load with the highest throughput."""
        return report.load_headline(study.run, study.result)

    def cautions(self, study: LoadStudy) -> list[str]:
        """Return what limits the figures."""
        return report.load_cautions(study.run, study.result.rows)

    def document(self, study: LoadStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.load_report(study.run, study.result, figures)

    def pictures(self, study: LoadStudy) -> Iterable[Picture]:
        """Return how long rounds take under each load."""
        return [report.round_trips(study.result)]

    def files(self, study: LoadStudy) -> Tables:
        """Return a row per load."""
        return {"load.csv": [flat(to_builtins(row)) for row in study.result.rows]}


class ValidationKind(LoadedKind[Validation]):
    """The simulation of a load that was measured, in the folder of the load."""

    command = "validate"
    result = Validation
    summary = "validation.json"
    page = "validation"
    beside = "load"

    def headline(self, study: ValidationStudy) -> str:
        """Return how far the simulation is off."""
        return report.validation_headline(study.result)

    def cautions(self, study: ValidationStudy) -> list[str]:
        """Return what limits the measured figures."""
        return report.load_cautions(study.run, [row.measured for row in study.result.rows])

    def document(self, study: ValidationStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.validation_report(study.run, study.result, figures)

    def pictures(self, study: ValidationStudy) -> Iterable[Picture]:
        """Return the errors of the simulation, if there is anything to compare."""
        errors = report.error_picture(study.result)
        return [errors] if errors else []

    def files(self, study: ValidationStudy) -> Tables:
        """Return a row per load."""
        return {"validation.csv": [flat(to_builtins(row)) for row in study.result.rows]}


LOAD = LoadKind()
VALIDATION = ValidationKind()
KINDS = (LOAD, VALIDATION)
