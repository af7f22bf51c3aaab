"""`skit train-predictor`: train rejection predictors for a pair of models and report if they pay
off.
"""

from typing import Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    say,
    say_disturbed,
    say_target,
    tell_report,
)
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.training.options import TRACED, TrainingDeployments, TrainingOptions


def train_predictor(
    options: Given[TrainingOptions],
    dataset: Annotated[DatasetOptions, TRACED],
    deployments: TrainingDeployments,
    as_json: JsonOption = False,
) -> None:
    """Train and evaluate the predictors, and save them, marked if the machine was disturbed."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load
    from specbench_kit.studies.training.run import run_training
    from specbench_kit.studies.training.settings import PredictorTrainingSettings

    console = Console(stderr=as_json)
    first, *others = map(load, dict.fromkeys(deployments.deployments))
    settings = options.into(
        PredictorTrainingSettings,
        deployment=first,
        further_deployments=tuple(others),
        argv=command_line(),
    )
    for family, reason in settings.left_out_families.items():
        say(console, f"left out: the family {family}, since {reason}")
    prompts = None
    if settings.trace is None:
        prompts = load_dataset(dataset, settings.limit, settings.seed, console, to_train=True)
        say_target(console, settings.target)
    with stepping_bar() as report:
        outcome = run_training(settings, prompts, report)
    study = outcome.study
    study.kind.print(console, study)
    for family, folder in outcome.saved.items():
        say(console, f"saved: {family} in {folder}")
    tell_report(console, study.folder, study.result, as_json)
    if outcome.doubts:
        names = ", ".join(folder.name for folder in outcome.saved.values())
        say_disturbed(console, outcome.doubts, f"predictor={names}")
