"""`skit sweep`: replay a trace over a grid of deployments and options."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, tell_report
from specbench_kit.option import DECODING, DEPLOYMENT, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.sweeps.run import Outcome
    from specbench_kit.sweeps.settings import Settings

LIMIT = 100
"""Prompts that take a minute or two to record on two cores."""


def sweep(
    method: Annotated[
        list[str], typer.Option(help="name or name:key=value,...; may be given several times.", rich_help_panel=RUN)
    ],
    replaced: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="KEY=VALUE,VALUE,... of the deployment (link.rtt_s) or of a method (fixed-k.k); may be given several "
            "times. If left out, what the deployment proposes.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    deployment: options.DeploymentOption = "local",
    replay: Annotated[
        Path | None, typer.Option(help="A trace of `skit record`, instead of recording one.", rich_help_panel=RUN)
    ] = None,
    dataset: options.DatasetOption = "gsm8k",
    limit: Annotated[int | None, typer.Option(help="Number of prompts, drawn by --seed.", rich_help_panel=RUN)] = LIMIT,
    data_dir: options.DataDirOption = None,
    sample: options.SampleOption = True,
    target: options.TargetOption = "bundled",
    draft: options.DraftOption = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    max_draft: Annotated[
        int, typer.Option(help="Draft tokens recorded at every offset.", rich_help_panel=DECODING)
    ] = 8,
    batch_size: options.BatchSizeOption = 1,
    seed: options.SeedOption = 0,
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Compare methods over a range of deployments or options, and find where they stop paying for themselves."""
    from rich.console import Console

    from specbench_kit.bench.settings import RECORDED_TOGETHER
    from specbench_kit.bench.settings import Settings as RecordSettings
    from specbench_kit.sweeps.settings import Settings

    argv = ("skit", *sys.argv[1:])
    recording = RecordSettings(
        methods=("autoregressive",),
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        batch_size=RECORDED_TOGETHER,
        seed=seed,
        limit=limit,
        argv=argv,
    )
    settings = Settings(
        methods=tuple(method),
        deployment=deployment,
        replaced=tuple(replaced or ()),
        recording=recording,
        trace=replay,
        max_draft=max_draft,
        batch_size=batch_size,
        seed=seed,
        out=out,
        argv=argv,
    )
    settings.points()
    console = Console(stderr=as_json)
    outcome = _run(settings, None if replay else _load(settings, dataset, data_dir, sample, console))
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)


def _load(
    settings: "Settings", dataset: str, data_dir: Path | None, sample: bool, console: "Console"
) -> "LoadedDataset":
    return load_dataset(dataset, data_dir, sample, settings.recording, console)


def _run(settings: "Settings", dataset: "LoadedDataset | None") -> "Outcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.sweeps.run import run_sweep

    with stepping_bar() as report:
        return run_sweep(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "Outcome") -> None:
    from specbench_kit.reports.sweep_terminal import print_sweep

    print_sweep(console, outcome.run, outcome.summary)
