"""Simulations and searches for capacity as kinds of study."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.studies.serving import capacity, simulation_grid, wording
from specbench_kit.studies.serving.plots import pictures
from specbench_kit.studies.serving.report import serving_report
from specbench_kit.studies.serving.summary import (
    CapacitySummary,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
)
from specbench_kit.studies.serving.terminal import print_serving

if TYPE_CHECKING:
    from rich.console import Console

R = TypeVar("R", bound=ServingSummary)
ServingStudy = (
    Study[ServingDescription, SimulationSummary] | Study[ServingDescription, CapacitySummary]
)


class ServingKind(StudyKind[ServingDescription, R]):
    """Many devices that share servers."""

    description = ServingDescription

    def headline(self, study: Study[ServingDescription, R]) -> str:
        """Return what was found, in the first of the page's sentences."""
        return next(iter(wording.headlines(study.run, study.result)), wording.NOTHING)

    def cautions(self, study: Study[ServingDescription, R]) -> list[str]:
        """Return what limits the result."""
        run = study.run
        return [
            *setting_cautions(run),
            *wording.acceptance_cautions(run),
            *wording.cautions(study.result),
        ]

    def document(self, study: Study[ServingDescription, R], figures: Sequence[Figure]) -> Document:
        """Return the page, with links to timelines and events of the folder."""
        links = [path.name for path in sorted(study.folder.glob("timeline-*.json"))]
        links += ["events/"] if (study.folder / "events").is_dir() else []
        return serving_report(study.run, study.result, figures, links)

    def pictures(self, study: Study[ServingDescription, R]) -> Iterable[Picture]:
        """Return the figures over the first axis of the grid."""
        return pictures(study.result)

    def setting(self, study: Study[ServingDescription, R]) -> str:
        """Return for how long and with how many seeds was simulated."""
        config = study.run.config
        return f"{wording.seeds_in_words(config)} of {config.duration_s:g} simulated s, {time_kind(study.run)}"

    def print(self, console: "Console", study: Study[ServingDescription, R]) -> None:
        """Print a row per point, the published numbers if there are any, and the cautions."""
        print_serving(console, study.run, study.result)


class SimulationKind(ServingKind[SimulationSummary]):
    """Simulations of a grid."""

    command = "simulate"
    result = SimulationSummary

    def files(self, study: Study[ServingDescription, SimulationSummary]) -> Tables:
        """Return one row per point, and per class if there are several."""
        return {"simulate.csv": simulation_grid.table(study.result.rows)}


class CapacityKind(ServingKind[CapacitySummary]):
    """Searches for the most devices that a server serves."""

    command = "capacity"
    result = CapacitySummary

    def files(self, study: Study[ServingDescription, CapacitySummary]) -> Tables:
        """Return one row per series and setting, and per class if there are several."""
        return {"capacity.csv": capacity.table(study.result.rows)}


SIMULATION = SimulationKind()
CAPACITY = CapacityKind()
KINDS = (SIMULATION, CAPACITY)
