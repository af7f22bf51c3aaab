"""A training of predictors as a kind of study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.typed_json import flat
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.study import Study, StudyKind, Tables
from specbench_kit.studies.training import report, wording
from specbench_kit.studies.training.wording import TrainingDescription, TrainingSummary

if TYPE_CHECKING:
    from rich.console import Console

TrainingStudy = Study[TrainingDescription, TrainingSummary]


class TrainingKind(StudyKind[TrainingDescription, TrainingSummary]):
    """Predictors of which drafted tokens will be rejected.

    Its pictures are drawn during the training, from the scores of single tokens, and are kept as
    files.
    """

    command = "train-predictor"
    description = TrainingDescription
    result = TrainingSummary

    def headline(self, study: TrainingStudy) -> str:
        """Return which stopping criterion to use."""
        return report.advice(study.result)

    def cautions(self, study: TrainingStudy) -> list[str]:
        """Return what limits the result."""
        return [*wording.cautions(study.run, study.result), *setting_cautions(study.run)]

    def document(self, study: TrainingStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result)

    def files(self, study: TrainingStudy) -> Tables:
        """Return a row per stopping criterion, with its metrics on the test prompts."""
        decoding = study.result.decoding
        return {
            "decoding.csv": [
                {"stop_rule": name, **flat(to_builtins(row))} for name, row in decoding.items()
            ]
        }

    def print(self, console: "Console", study: TrainingStudy) -> None:
        """Print every stopping criterion, then the conclusions."""
        report.print_training(console, study.run, study.result)


TRAINING = TrainingKind()
KINDS = (TRAINING,)
