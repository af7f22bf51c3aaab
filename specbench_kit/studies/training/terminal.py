"""What `skit train-head` and `skit train-draft` print."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
    from specbench_kit.studies.training.distillation.live import LiveResult
    from specbench_kit.studies.training.distillation.study import HeldOutAcceptance

PROMPTS_WITHOUT_TIME = 2000
"""Prompts that are answered where neither their number nor the time is limited."""


def load_prompts(
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
def show_training() -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Show bars of the steps, and print the lines of checkpoints above them, on stderr."""
    from specbench_kit.cli.progress import stepping_bar_with_lines

    kept = "answers and the best weights so far are kept, --resume continues from them"
    with kept_when_interrupted(lambda: kept), stepping_bar_with_lines() as functions:
        yield functions


def tell_training(
    console: "Console",
    kind: str,
    folder: Path,
    held_out: "HeldOutAcceptance",
    live: "LiveResult | None",
) -> None:
    """Print what a draft reached, live before anything computed on answers."""
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
    say(console, f"{kind}: {folder}")


def print_training(folder: Path, summary: object) -> None:
    """Print the result as one line of JSON."""
    print_json({"run_dirs": [str(folder)], "summary": summary})
