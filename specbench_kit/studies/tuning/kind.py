"""A tuning as a kind of study."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.tuning import report
from specbench_kit.studies.tuning.summary import TuningSummary

if TYPE_CHECKING:
    from rich.console import Console

TuningStudy = Study[RunDescription, TuningSummary]
DRAFTS = "drafts.csv"


class TuningKind(StudyKind[RunDescription, TuningSummary]):
    """The options of each method that are best on a trace.

    Its folder stands beside the file that `skit bench --tuned` reads, and has that file's name
    without the suffix.
    """

    command = "tune"
    description = RunDescription
    result = TuningSummary
    file_suffix = ".json"

    def headline(self, study: TuningStudy) -> str:
        """Return the best tuned method and what tuning gained."""
        return report.headline(study.result)

    def cautions(self, study: TuningStudy) -> list[str]:
        """Return what limits the gains."""
        return [*report.warnings(study.result), *report.cautions(study.result)]

    def document(self, study: TuningStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result, study.result.left_out, figures)

    def pictures(self, study: TuningStudy) -> Iterable[Picture]:
        """Return the speed of each method before and after tuning."""
        return filter(None, [report.picture(study.result)])

    def setting(self, study: TuningStudy) -> str:
        """Return the deployment and the requests."""
        tuned = study.result
        requests = f"{tuned.run['requests']} requests, one half for tests"
        return f"{tuned.deployment}, batch of {tuned.batch_size}, {requests}"

    def files(self, study: TuningStudy) -> Tables:
        """Return a row per method, and one per draft where several were compared."""
        rows = []
        for name, choice in study.result.methods.items():
            gain = report.gain(choice)
            low, high = gain.bounds or (None, None)
            speeds = {
                "tokens_per_s": choice.tokens_per_s,
                "default_tokens_per_s": choice.default_tokens_per_s,
            }
            if choice.value is not None:
                speeds |= {"value": choice.value, "default_value": choice.default_value}
            gains = {"gain": gain.value, "gain_low": low, "gain_high": high}
            rows.append(
                {"method": name, "spec": choice.spec, "tried": choice.tried, **speeds, **gains}
            )
        drafts = [
            {name: value for name, value in asdict(draft).items() if value is not None}
            for draft in study.result.drafts
        ]
        return {"tuned.csv": rows, **({DRAFTS: drafts} if drafts else {})}

    def print(self, console: "Console", study: TuningStudy) -> None:
        """Print what each method gains."""
        render_terminal.show(console, report.terminal(study.result))


TUNING = TuningKind()
KINDS = (TUNING,)
