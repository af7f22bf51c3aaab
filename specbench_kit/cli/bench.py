"""`skit bench`: decode a dataset with methods and report."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.bench.settings import Settings
from specbench_kit.errors import SkitError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.bench.conclusion import Conclusion
    from specbench_kit.bench.run import Benchmark
    from specbench_kit.datasets.base import LoadedDataset

RUN, MODELS, SAMPLING, OUTPUT = "What to run", "Models", "Decoding", "Output"


def bench(
    method: Annotated[
        list[str], typer.Option(help="name or name:key=value,...; may be given several times.", rich_help_panel=RUN)
    ],
    dataset: Annotated[
        str, typer.Option(help="A name from `skit list datasets`, or a .jsonl file.", rich_help_panel=RUN)
    ] = "gsm8k",
    limit: Annotated[
        int | None, typer.Option(help="Number of prompts, drawn by --seed; all if left out.", rich_help_panel=RUN)
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Decode the autoregressive baseline too.", rich_help_panel=RUN)] = True,
    data_dir: Annotated[
        Path | None, typer.Option(help="Local datasets; SKIT_DATA_DIR if left out.", rich_help_panel=RUN)
    ] = None,
    sample: Annotated[
        bool, typer.Option(help="Whether a bundled sample may stand in for the dataset.", rich_help_panel=RUN)
    ] = True,
    target: Annotated[
        str, typer.Option(help="Hugging Face id, local folder, or 'bundled'.", rich_help_panel=MODELS)
    ] = "bundled",
    draft: Annotated[
        str, typer.Option(help="Hugging Face id, local folder, or 'bundled'.", rich_help_panel=MODELS)
    ] = "bundled",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=MODELS)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODELS)] = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Longest output.", rich_help_panel=SAMPLING)] = 128,
    batch_size: Annotated[int, typer.Option(help="Requests decoded together.", rich_help_panel=SAMPLING)] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 keeps everything.", rich_help_panel=SAMPLING)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps everything.", rich_help_panel=SAMPLING)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of prompts drawn and tokens sampled.", rich_help_panel=SAMPLING)] = 0,
    out: Annotated[Path, typer.Option(help="Folder that run directories are made in.", rich_help_panel=OUTPUT)] = Path(
        "results"
    ),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the newest unfinished run of these settings.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="End stdout with one line of JSON; tables go to stderr.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Decode a dataset with one or more methods, check losslessness, and write a report."""
    from rich.console import Console

    settings = Settings(
        methods=tuple(method),
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        limit=limit,
        baseline=baseline,
        out=out,
        resume=resume,
        argv=("skit", *sys.argv[1:]),
    )
    console = Console(stderr=as_json)
    benchmark = _prepare(settings, dataset, data_dir, sample, console)
    problem = _decode(benchmark)
    conclusions = benchmark.conclude()
    _print_conclusions(console, conclusions)
    if as_json:
        print(_as_json(conclusions))
    if problem is not None:
        raise problem


def _prepare(settings: Settings, dataset: str, data_dir: Path | None, sample: bool, console: "Console") -> "Benchmark":
    """Check the cheap things first: method names, then data, then models."""
    from specbench_kit.datasets.loading import load
    from specbench_kit.methods.spec import parse_method

    for spec in settings.methods:
        if parse_method(spec).needs_reference and not settings.baseline:
            _say(console, f"{spec} reads the autoregressive output: the baseline is decoded despite --no-baseline")
    loaded = load(dataset, data_dir=data_dir, allow_sample=sample, limit=settings.limit, seed=settings.seed)
    if loaded.source == "sample":
        _warn_of_sample(console, loaded)
    with console.status("loading models"):
        from specbench_kit.bench.run import Benchmark

        return Benchmark(settings, loaded)


def _say(console: "Console", line: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(line, style=style), soft_wrap=True)


def _warn_of_sample(console: "Console", loaded: "LoadedDataset") -> None:
    line = (
        f"SAMPLE DATA: '{loaded.name}' was not found, {len(loaded.prompts)} prompts of the bundled sample "
        f"'{loaded.location}' stand in ({loaded.reason}). --no-sample forbids this."
    )
    _say(console, line, style="bold black on yellow")


def _decode(benchmark: "Benchmark") -> SkitError | None:
    """Decode under a progress bar; what ends it early is returned, so that finished requests get their report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:6.0f} tokens/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("decoding", total=None, speed=0.0)
        try:
            benchmark.run(
                lambda p: bar.update(
                    task, description=p.method, completed=p.done, total=p.planned, speed=p.tokens_per_s
                )
            )
        except KeyboardInterrupt:
            return SkitError("interrupted; finished requests are kept, --resume goes on with the rest")
        except SkitError as error:
            return error
    return None


def _print_conclusions(console: "Console", conclusions: "list[Conclusion]") -> None:
    from specbench_kit.reports.terminal import print_summary

    print_summary(console, conclusions[0].directory.run, [conclusion.summary for conclusion in conclusions])
    for conclusion in conclusions:
        _say(console, f"report: {conclusion.directory.path / 'report.md'}")


def _as_json(conclusions: "list[Conclusion]") -> str:
    return json.dumps(
        {
            "run_dirs": [str(conclusion.directory.path) for conclusion in conclusions],
            "summary": {conclusion.summary["method"]: conclusion.summary for conclusion in conclusions},
        },
        allow_nan=False,
    )
