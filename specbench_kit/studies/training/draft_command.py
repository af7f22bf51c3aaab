"""`skit train-draft`: train a small draft model for a target."""

from typing import Annotated

from specbench_kit.cli.common import JsonOption
from specbench_kit.core.option import FIRST, Given
from specbench_kit.studies.training.distillation.options import (
    DraftRecipe,
    DraftTrainingSettings,
    TrainingPromptOptions,
)
from specbench_kit.studies.training.terminal import train_and_tell


def train_draft(
    options: Given[DraftTrainingSettings],
    recipe: DraftRecipe,
    prompts: TrainingPromptOptions,
    as_json: Annotated[JsonOption, FIRST] = False,
) -> None:
    """Train the draft model, save it and print what it reaches on held-out prompts."""
    from specbench_kit.cli.common import command_line
    from specbench_kit.studies.training import draft_training

    settings = options.make(argv=command_line())
    train_and_tell(
        "draft",
        settings,
        prompts,
        lambda dataset, report, tell: draft_training.train_draft(
            settings, recipe, dataset, report, tell
        ),
        as_json=as_json,
    )
