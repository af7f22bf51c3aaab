"""`skit profile-drafter`: how long a pair's steps take on the device at hand."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.profile_verifier import BudgetOption, NameOption, ResumeOption, RunsOption
from specbench_kit.option import MODELS, OUTPUT

MODEL_HELP = "'bundled', a folder, a hub id, or an architecture card: a name such as qwen3-0.6b, or a .toml file."


def profile_drafter(
    target: Annotated[str, typer.Option(help=MODEL_HELP, rich_help_panel=MODELS)] = "bundled",
    draft: Annotated[str, typer.Option(help=MODEL_HELP, rich_help_panel=MODELS)] = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    budget: BudgetOption = 240.0,
    runs: RunsOption = 3,
    seed: options.SeedOption = 0,
    resume: ResumeOption = False,
    name: NameOption = None,
    save_to: Annotated[
        Path | None, typer.Option(help="Folder for both profiles, instead of your own.", rich_help_panel=OUTPUT)
    ] = None,
    force: options.ForceSaveOption = False,
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Profile a pair: draft steps and verifications against context and batch, AdaSpec's latency model of both."""
    from specbench_kit.cli.profiling import profile
    from specbench_kit.profilers.settings import Settings

    settings = Settings(
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        budget_s=budget,
        runs=runs,
        seed=seed,
        resume=resume,
        name=name,
        save_to=save_to,
        force=force,
        out=out,
        argv=("skit", *sys.argv[1:]),
    )
    profile(settings, as_json)
