"""`skit train-head`: train an EAGLE head for a target."""

from typing import Annotated

from specbench_kit.cli.common import JsonOption
from specbench_kit.core.option import FIRST, Given
from specbench_kit.studies.training.distillation.options import (
    HeadRecipe,
    HeadTrainingSettings,
    TrainingPromptOptions,
)
from specbench_kit.studies.training.terminal import train_and_tell


def train_head(
    options: Given[HeadTrainingSettings],
    recipe: HeadRecipe,
    prompts: TrainingPromptOptions,
    as_json: Annotated[JsonOption, FIRST] = False,
) -> None:
    """Train the head, save it and print what it reaches on held-out prompts."""
    from specbench_kit.cli.common import command_line
    from specbench_kit.studies.training import head_training

    settings = options.make(argv=command_line())
    train_and_tell(
        "head",
        settings,
        prompts,
        lambda dataset, report, tell: head_training.train_head(
            settings, recipe, dataset, report, tell
        ),
        as_json=as_json,
    )
