"""`skit train-head`: a feature head for a target."""

import json

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, say
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.training.heads.options import HeadTrainingSettings, Recipe


def train_head(
    options_given: Given[HeadTrainingSettings],
    recipe: Recipe,
    prompts: DatasetOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Train a feature head for `--method eagle` and `drafter=head` on the target's own greedy answers.

    DatasetOptions come from the dataset's train split or, where there is none, from the 30 % that a hash reserves.
    """
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.training.heads import run

    console = Console(stderr=as_json)
    settings = options_given.make(recipe=recipe, argv=command_line())
    dataset = None
    if settings.trace is None:
        dataset = load_dataset(prompts, settings.limit, recipe.seed, console, to_train=True)
    with stepping_bar() as report:
        trained = run.train_head(settings, dataset, report)
    agreement = ", ".join(f"{100 * share:.1f}" for share in trained.summary["agreement"])
    say(console, f"agrees with the target on answers set apart, token by token in a row: {agreement} %")
    say(console, f"head: {trained.folder}")
    if as_json:
        print(json.dumps({"run_dirs": [str(trained.folder)], "summary": trained.summary}, allow_nan=False))
