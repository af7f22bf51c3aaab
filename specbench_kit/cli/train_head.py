"""`skit train-head`: train a feature head for a target."""

import json

from specbench_kit.cli.common import command_line, load_dataset, say
from specbench_kit.cli.options import JsonOption
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.training.heads.options import HeadTrainingSettings, Recipe


def train_head(
    options: Given[HeadTrainingSettings], recipe: Recipe, dataset: DatasetOptions, as_json: JsonOption = False
) -> None:
    """Train the head, save it and print how often it agrees with the target."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.training.heads import run

    console = Console(stderr=as_json)
    settings = options.make(recipe=recipe, argv=command_line())
    prompts = None
    if settings.trace is None:
        prompts = load_dataset(dataset, settings.limit, recipe.seed, console, to_train=True)
    with stepping_bar() as report:
        trained = run.train_head(settings, prompts, report)
    agreement = ", ".join(f"{100 * share:.1f}" for share in trained.summary["agreement"])
    say(console, f"agreement with the target on held-out answers, for the 1st, 2nd, ... drafted token: {agreement} %")
    say(console, f"head: {trained.folder}")
    if as_json:
        print(json.dumps({"run_dirs": [str(trained.folder)], "summary": trained.summary}, allow_nan=False))
