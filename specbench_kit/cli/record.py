"""`skit record`: write a trace that chain methods can be replayed on."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.bench.settings import Settings
from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, say
from specbench_kit.errors import SkitError


def record(
    out: Annotated[Path, typer.Option(help="The Parquet file to write.", rich_help_panel=options.OUTPUT)] = Path(
        "results/trace.parquet"
    ),
    max_draft: Annotated[
        int, typer.Option(help="Draft tokens recorded at every offset.", rich_help_panel=options.DECODING)
    ] = 8,
    dataset: options.DatasetOption = "gsm8k",
    limit: options.LimitOption = None,
    data_dir: options.DataDirOption = None,
    sample: options.SampleOption = True,
    target: options.TargetOption = "bundled",
    draft: options.DraftOption = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    batch_size: options.BatchSizeOption = 8,
    seed: options.SeedOption = 0,
) -> None:
    """Record a trace: the target's greedy answers and, at every offset, what the draft model would propose."""
    from rich.console import Console

    settings = Settings(
        methods=("autoregressive",),
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        seed=seed,
        limit=limit,
        argv=("skit", *sys.argv[1:]),
    )
    if max_draft < 1:
        raise SkitError(f"--max-draft must be at least 1, not {max_draft}")
    console = Console()
    loaded = load_dataset(dataset, data_dir, sample, settings, console)
    from specbench_kit.bench import record_run
    from specbench_kit.cli.progress import counting_bar

    with counting_bar("recording") as report:
        done = record_run.record(settings, loaded, out, max_draft, report)
    for line in done.warnings:
        say(console, line, style="bold red")
    failed = f"; {done.failed} did not fit the context" if done.failed else ""
    say(console, f"trace: {done.path} ({done.requests} requests, {done.offsets} offsets{failed})")
