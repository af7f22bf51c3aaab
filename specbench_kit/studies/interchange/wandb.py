"""Weights & Biases: parameters and metrics of a run, offline unless WANDB_MODE says otherwise."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.studies.interchange.base import Format, formats
from specbench_kit.studies.interchange.numbers import load_package, numbers_of, parameters_of, title_of

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory


@formats.register("wandb")
class WandB(Format):
    """One W&B run for a run directory, in a project named after the dataset, with its files in the folder `out`.

    What is written offline is sent with `wandb sync`.
    """

    summary = "a run with parameters and metrics for Weights & Biases, offline (extra wandb)"
    tool = "Weights & Biases"

    def save(self, run: "RunDirectory", out: Path) -> None:
        wandb = load_package("wandb")
        out.mkdir(parents=True, exist_ok=True)
        project, name = title_of(run)
        mode = os.environ.get("WANDB_MODE", "offline")
        settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        asked = {"project": project, "name": name, "mode": mode, "dir": str(out), "settings": settings}
        made = wandb.init(config=parameters_of(run), **asked)
        made.summary.update(numbers_of(run))
        made.finish()
