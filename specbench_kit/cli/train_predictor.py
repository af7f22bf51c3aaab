"""`skit train-predictor`: rejection predictors for a pair of models, and what they are worth."""

from typing import TYPE_CHECKING

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, not_saved, say, tell_report
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.training.options import Clocks, TrainingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.studies.training.run import PredictorTrainingOutcome
    from specbench_kit.studies.training.settings import PredictorTrainingSettings


def train_predictor(
    options_given: Given[TrainingOptions], prompts: DatasetOptions, clocks: Clocks, as_json: options.JsonOption = False
) -> None:
    """Train rejection predictors for `--method wisp` and report whether they are worth it.

    DatasetOptions come from the dataset's train split or, where there is none, from the 30 % that a hash reserves: a
    benchmark with a predictor trained on these leaves them out.
    """
    from rich.console import Console

    from specbench_kit.deployments.loading import load
    from specbench_kit.studies.training.settings import PredictorTrainingSettings

    console = Console(stderr=as_json)
    first, *others = map(load, dict.fromkeys(clocks.deployments))
    settings = PredictorTrainingSettings(
        **options_given.values, deployment=first, elsewhere=tuple(others), argv=command_line()
    )
    dataset = None
    if settings.trace is None:
        dataset = load_dataset(prompts, settings.limit, settings.seed, console, to_train=True)
    outcome = _train(settings, dataset)
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)
    if outcome.doubts:
        raise not_saved(outcome.doubts, str(outcome.folder / "predictors"))


def _train(settings: "PredictorTrainingSettings", dataset: "LoadedDataset | None") -> "PredictorTrainingOutcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.training.run import run_training

    with stepping_bar() as report:
        return run_training(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "PredictorTrainingOutcome") -> None:
    from specbench_kit.reports.predictor.terminal import print_training

    print_training(console, outcome.run, outcome.summary)
    for family, folder in outcome.saved.items():
        say(console, f"saved: {family} in {folder}")
