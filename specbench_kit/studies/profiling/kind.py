"""Profiles of a verifier, and of a drafter and its verifier, as kinds of study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.typed_json import flat
from specbench_kit.profilers.saving import ProfilingSummary
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.sections import headlines
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.studies.profiling import report
from specbench_kit.studies.profiling.report import ProfilingDescription

if TYPE_CHECKING:
    from rich.console import Console

ProfilingStudy = Study[ProfilingDescription, ProfilingSummary]


class ProfilingKind(StudyKind[ProfilingDescription, ProfilingSummary]):
    """How long forwards take on a device.

    The pictures are drawn from single timings while a profile is fitted, and are kept as files.
    """

    description = ProfilingDescription
    result = ProfilingSummary

    def __init__(self, command: str) -> None:
        self.command = command

    def headline(self, study: ProfilingStudy) -> str:
        """Return the sentence on each profile."""
        return " ".join(headlines.of_profile(profile) for profile in study.result.profiles.values())

    def cautions(self, study: ProfilingStudy) -> list[str]:
        """Return what limits the use of the profiles."""
        return [
            line
            for one in study.result.profiles.values()
            for line in report.profile_cautions(study.run, one)
        ]

    def document(self, study: ProfilingStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result)

    def files(self, study: ProfilingStudy) -> Tables:
        """Return a row per coefficient of each profile."""
        rows = [
            {
                "role": role,
                "coefficient": name,
                "value": value,
                **flat({"limit": profile.limits.get(name)}),
            }
            for role, profile in study.result.profiles.items()
            for name, value in to_builtins(profile.coefficients).items()
        ]
        return {"coefficients.csv": rows}

    def print(self, console: "Console", study: ProfilingStudy) -> None:
        """Print coefficients, accuracy and cautions of every profile."""
        report.print_profiles(console, study.run, study.result)


KINDS = (ProfilingKind("profile-verifier"), ProfilingKind("profile-drafter"))
BY_COMMAND = {kind.command: kind for kind in KINDS}
