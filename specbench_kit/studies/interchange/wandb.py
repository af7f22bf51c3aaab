"""Weights & Biases: parameters and metrics of a run, offline unless WANDB_MODE says otherwise."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.studies.interchange.base import Format, formats
from specbench_kit.studies.interchange.numbers import (
    load_package,
    numbers_of,
    parameters_of,
    title_of,
)

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory


@formats.register("wandb")
class WandB(Format):
    """One W&B run for a run directory, in a project named after the dataset, with its files in the
    folder `out`.

    A run that was written offline is sent with `wandb sync`.
    """

    summary = "a run with parameters and metrics for Weights & Biases, offline (extra wandb)"
    tool = "Weights & Biases"

    def save(self, run: "RunDirectory", out: Path) -> None:
        wandb = load_package("wandb")
        out.mkdir(parents=True, exist_ok=True)
        project, name = title_of(run)
        tracked = wandb.init(
            project=project,
            name=name,
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(out),
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, x_disable_stats=True
            ),
            config=parameters_of(run),
        )
        tracked.summary.update(numbers_of(run))
        tracked.finish()
