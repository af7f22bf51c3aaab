"""`skit profile-verifier`: how long a target's forwards take on a device."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.option import MODELS, OUTPUT, RUN
from specbench_kit.profilers.settings import Settings

BudgetOption = Annotated[
    float, typer.Option("--budget", help="Seconds that measuring may take; lengths shrink to fit.", rich_help_panel=RUN)
]


@options_of(Settings)
def profile_verifier(
    given: Given,
    target: Annotated[
        str,
        typer.Option(
            help="'bundled', a folder, a hub id, or an architecture card: a name such as qwen3-32b, or a .toml file.",
            rich_help_panel=MODELS,
        ),
    ] = "bundled",
    gpu: Annotated[
        str | None,
        typer.Option(
            help="A device card such as a100, or a .toml file; derived from its data sheet where it is not here.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    require_measured: Annotated[
        bool, typer.Option("--require-measured", help="An absent --gpu is an error.", rich_help_panel=MODELS)
    ] = False,
    budget: BudgetOption = 420.0,
    save_to: Annotated[
        Path | None, typer.Option(help="The .toml file to write, instead of your profiles.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Profile a verifier: time WISP's 173 configurations, fit its latency model, check it against physics."""
    from specbench_kit.cli.profiling import profile

    settings = Settings(
        target=target,
        gpu=gpu,
        require_measured=require_measured,
        budget_s=budget,
        save_to=save_to,
        argv=("skit", *sys.argv[1:]),
        **given,
    )
    profile(settings, as_json)
