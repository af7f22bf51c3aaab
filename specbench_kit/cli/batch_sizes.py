"""`skit batch-sizes`: throughput against the time per token over batch sizes, one line per method."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, say, tell_report
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions, DeploymentOptions
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import RUN, Option, select_fields
from specbench_kit.studies.bench.settings import BenchSettings


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts) or len(set(parts)) < len(parts):
        raise SkitError(f"--sizes must be different whole numbers from 1 up, as in 1,2,4,8, not '{text}'")
    return tuple(sorted(map(int, parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is decoded at every batch size."""

    methods: Annotated[
        tuple[str, ...],
        Option("name or name:key=value,..., 'all' or 'group:NAME'; may be given several times.", RUN, flag="method"),
    ]
    sizes: Annotated[tuple[int, ...], Option("Batch sizes.", RUN, parse=_sizes)] = (1, 2, 4, 8, 16, 32)
    trace: Annotated[Path | None, Option("A trace of `skit record` to run on, without models.", RUN, "replay")] = None
    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed: at least the largest batch.", RUN)] = 64
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    tuned: Annotated[Path | None, Option("A file of `skit tune`.", RUN)] = None
    seed: common.Seed = 0
    out: common.Out = Path("results")


def batch_sizes(
    asked: Sizes, prompts: DatasetOptions, timed: DeploymentOptions, as_json: options.JsonOption = False
) -> None:
    """Show up to which batch size each method pays: throughput against time per token, live, modelled or replayed."""
    from rich.console import Console

    from specbench_kit.deployments.loading import load

    shared = {**select_fields(BenchSettings, asdict(asked)), "deployment": load(timed.deployment, timed.replaced)}
    settings = BenchSettings(**shared, argv=command_line())
    console = Console(stderr=as_json)
    source = asked.trace or load_dataset(prompts, settings.limit, settings.seed, console)
    from specbench_kit.cli.progress import decoding_bar
    from specbench_kit.studies.sweep.batch_sizes import run_curves

    with decoding_bar() as report:
        curves = run_curves(settings, asked.sizes, source, report)
    for spec, reason in curves.left_out.items():
        say(console, f"left out: {spec}: {reason}")
    tell_report(console, curves.folder, curves.summary, as_json)
