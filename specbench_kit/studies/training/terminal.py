"""What `skit train-head` and `skit train-draft` print."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specbench_kit.cli.common import load_dataset, print_json, say, say_target
from specbench_kit.cli.interrupts import kept_when_interrupted
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.studies.training.distillation.options import (
    DistillationSettings,
    TrainingPromptOptions,
)

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.studies.training.distillation.study import TrainedDrafter

Tell = Callable[[str], None]
"""Prints a line above the bars."""
Train = Callable[["LoadedDataset | None", ProgressCallback, Tell], "TrainedDrafter"]
"""Trains on prompts, or on the trace that the settings name."""

PROMPTS_WITHOUT_TIME = 2000
"""Prompts that are answered where neither their number nor the time is limited."""


def train_and_tell(
    kind: str,
    settings: DistillationSettings,
    prompts: TrainingPromptOptions,
    train: Train,
    *,
    as_json: bool,
) -> None:
    """Train what drafts, a `head` or a `draft`, and print what it reaches on held-out prompts."""
    from rich.console import Console

    console = Console(stderr=as_json)
    dataset = _load_prompts(settings, prompts, console)
    with _show_training() as (report, tell):
        trained = train(dataset, report, tell)
    _tell_training(console, kind, trained)
    if as_json:
        print_json({"run_dirs": [str(trained.folder)], "summary": trained.summary})


def _load_prompts(
    settings: DistillationSettings, prompts: TrainingPromptOptions, console: "Console"
) -> "LoadedDataset | None":
    """Load the training prompts of all datasets; None if the settings name a trace. Say which
    target is trained for.
    """
    say_target(console, settings.target)
    if settings.trace is not None:
        return None
    from specbench_kit.datasets.loading import join_datasets, share_prompts

    names = prompts.datasets
    limit = (
        PROMPTS_WITHOUT_TIME
        if settings.limit is None and settings.minutes is None
        else settings.limit
    )
    parts = [
        load_dataset(
            DatasetOptions(dataset=name, data_dir=prompts.data_dir, sample=prompts.sample),
            share,
            settings.seed,
            console,
            to_train=not prompts.all_prompts,
        )
        for name, share in zip(names, share_prompts(limit, len(names)), strict=True)
    ]
    return (
        parts[0] if len(parts) == 1 else join_datasets("+".join(part.name for part in parts), parts)
    )


@contextmanager
def _show_training() -> Iterator[tuple[ProgressCallback, Tell]]:
    """Show bars of the steps, and print the lines of checkpoints above them, on stderr."""
    from specbench_kit.cli.progress import stepping_bar_with_lines

    kept = "answers and the best weights so far are kept, --resume continues from them"
    with kept_when_interrupted(lambda: kept), stepping_bar_with_lines() as functions:
        yield functions


def _tell_training(console: "Console", kind: str, trained: "TrainedDrafter") -> None:
    """Print what a draft reached, live before anything computed on answers."""
    live, held_out = trained.summary["live"], trained.summary["held_out"]
    if live is not None:
        rates = ", ".join(f"{rate:.0%}" for rate in live["acceptance"])
        say(
            console,
            f"live, on {live['prompts']} held-out prompts: {live['acceptance_length']:.2f} tokens per verification, "
            f"{live['speedup']:.2f} times autoregressive decoding; accepted by position: {rates}",
        )
    else:
        say(
            console, f"on held-out answers: {held_out['acceptance_length']} tokens per verification"
        )
    say(console, f"{kind}: {trained.folder}")
