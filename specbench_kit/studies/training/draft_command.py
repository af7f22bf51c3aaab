"""`skit train-draft`: train a small draft model for a target."""

from typing import Annotated

from specbench_kit.cli.common import JsonOption
from specbench_kit.core.option import FIRST, Given
from specbench_kit.studies.training.distillation.options import (
    DraftRecipe,
    DraftTrainingSettings,
    TrainingPromptOptions,
)
from specbench_kit.studies.training.terminal import (
    load_prompts,
    print_training,
    show_training,
    tell_training,
)


def train_draft(
    options: Given[DraftTrainingSettings],
    recipe: DraftRecipe,
    prompts: TrainingPromptOptions,
    as_json: Annotated[JsonOption, FIRST] = False,
) -> None:
    """Train the draft model, save it and print what it reaches on held-out prompts."""
    from rich.console import Console

    from specbench_kit.cli.common import command_line
    from specbench_kit.studies.training import draft_training

    console = Console(stderr=as_json)
    settings = options.make(argv=command_line())
    dataset = load_prompts(settings, prompts, console)
    with show_training() as (report, tell):
        trained = draft_training.train_draft(settings, recipe, dataset, report, tell)
    tell_training(
        console, "draft", trained.folder, trained.summary["held_out"], trained.summary["live"]
    )
    if as_json:
        print_training(trained.folder, trained.summary)
