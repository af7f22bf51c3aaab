"""`skit profile-verifier`: how long a target's forwards take on a device."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.option import MODELS, OUTPUT, RUN

BudgetOption = Annotated[
    float, typer.Option("--budget", help="Seconds that measuring may take; lengths shrink to fit.", rich_help_panel=RUN)
]
RunsOption = Annotated[int, typer.Option(help="Times that the workload is gone through.", rich_help_panel=RUN)]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the newest unfinished run of these settings.", rich_help_panel=OUTPUT),
]
NameOption = Annotated[str | None, typer.Option(help="What the profile is called.", rich_help_panel=OUTPUT)]


def profile_verifier(
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
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    budget: BudgetOption = 420.0,
    runs: RunsOption = 3,
    seed: options.SeedOption = 0,
    resume: ResumeOption = False,
    name: NameOption = None,
    save_to: Annotated[
        Path | None, typer.Option(help="The .toml file to write, instead of your profiles.", rich_help_panel=OUTPUT)
    ] = None,
    force: options.ForceSaveOption = False,
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Profile a verifier: time WISP's 173 configurations, fit its latency model, check it against physics."""
    from specbench_kit.cli.profiling import profile
    from specbench_kit.profilers.settings import Settings

    settings = Settings(
        target=target,
        gpu=gpu,
        require_measured=require_measured,
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
