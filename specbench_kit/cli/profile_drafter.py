"""`skit profile-drafter`: how long a pair's steps take on the device at hand."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.cli.profile_verifier import BudgetOption
from specbench_kit.option import MODELS, OUTPUT
from specbench_kit.profilers.settings import Settings

MODEL_HELP = "'bundled', a folder, a hub id, or an architecture card: a name such as qwen3-0.6b, or a .toml file."


@options_of(Settings)
def profile_drafter(
    given: Given,
    target: Annotated[str, typer.Option(help=MODEL_HELP, rich_help_panel=MODELS)] = "bundled",
    draft: Annotated[str, typer.Option(help=MODEL_HELP, rich_help_panel=MODELS)] = "bundled",
    budget: BudgetOption = 240.0,
    save_to: Annotated[
        Path | None, typer.Option(help="Folder for both profiles, instead of your own.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Profile a pair: draft steps and verifications against context and batch, AdaSpec's latency model of both."""
    from specbench_kit.cli.profiling import profile

    settings = Settings(
        target=target,
        draft=draft,
        budget_s=budget,
        save_to=save_to,
        argv=("skit", *sys.argv[1:]),
        **given,
    )
    profile(settings, as_json)
