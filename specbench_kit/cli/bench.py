"""`skit bench`: decode a dataset with methods and report."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from specbench_kit.bench.settings import Launch, Settings
from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, say
from specbench_kit.cli.options import DECODING, DEPLOYMENT, OUTPUT, RUN
from specbench_kit.decoding.processes.place import by_torchrun
from specbench_kit.errors import SkitError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.bench.conclusion import Conclusion
    from specbench_kit.bench.lanes import Progress
    from specbench_kit.bench.run import Benchmark

Report = Callable[["Progress"], None]


def bench(
    method: Annotated[
        list[str], typer.Option(help="name or name:key=value,...; may be given several times.", rich_help_panel=RUN)
    ],
    dataset: options.DatasetOption = "gsm8k",
    limit: options.LimitOption = None,
    baseline: Annotated[bool, typer.Option(help="Decode the autoregressive baseline too.", rich_help_panel=RUN)] = True,
    replay: Annotated[
        Path | None, typer.Option(help="A trace of `skit record` to run on, without models.", rich_help_panel=RUN)
    ] = None,
    data_dir: options.DataDirOption = None,
    sample: options.SampleOption = True,
    target: options.TargetOption = "bundled",
    draft: options.DraftOption = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    batch_size: options.BatchSizeOption = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=DECODING)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 keeps everything.", rich_help_panel=DECODING)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps everything.", rich_help_panel=DECODING)] = 0,
    seed: options.SeedOption = 0,
    deployment: options.DeploymentOption = "local",
    replaced: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Replace a field of the deployment, as in link.rtt_s=0.04; may be given several times.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            help="Where the stages of a pipeline run: virtual, all in this process, or processes, one for each. Under "
            "torchrun they are its processes.",
            rich_help_panel=RUN,
        ),
    ] = "virtual",
    out: options.OutOption = Path("results"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the newest unfinished run of these settings.", rich_help_panel=OUTPUT
        ),
    ] = False,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Write what each resource did when, while this command decoded: a trace for Perfetto or Chrome, and "
            "a picture.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    token_view: Annotated[
        bool,
        typer.Option(
            "--token-view",
            help="Write an HTML page per request, of the first 100: where each token came from.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Decode a dataset with one or more methods, check losslessness, and write a report."""
    from rich.console import Console

    from specbench_kit.deployments.loading import load

    place = by_torchrun()
    if place is not None and place.rank:
        from specbench_kit.decoding.processes.worker import serve

        serve(place, device)
        return
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
        timeline=timeline,
        token_view=token_view,
        deployment=load(deployment, replaced or ()),
        launch=cast(Launch, "processes" if place is not None else launch),
        argv=("skit", *sys.argv[1:]),
    )
    console = Console(stderr=as_json)
    problem = None
    if replay is not None:
        conclusions = _replay(settings, replay)
    else:
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
    from specbench_kit.methods.spec import parse_method

    for spec in settings.methods:
        if parse_method(spec).needs_reference and not settings.baseline:
            say(console, f"{spec} reads the autoregressive output: the baseline is decoded despite --no-baseline")
    loaded = load_dataset(dataset, data_dir, sample, settings, console)
    with console.status("loading models"):
        from specbench_kit.bench.run import Benchmark

        return Benchmark(settings, loaded)


def _replay(settings: Settings, path: Path) -> "list[Conclusion]":
    if settings.temperature or settings.resume:
        raise SkitError("--replay runs a recorded greedy trace from its start: leave out --temperature and --resume")
    if settings.token_view:
        raise SkitError("--token-view shows the trees of a live run, which a trace does not hold: leave out --replay")
    from specbench_kit.bench.replay_run import bench_replay

    with _progress() as report:
        return bench_replay(settings, path, report)


def _decode(benchmark: "Benchmark") -> SkitError | None:
    """Decode under a progress bar; what ends it early is returned, so that finished requests get their report."""
    try:
        with _progress() as report:
            benchmark.run(report)
    except KeyboardInterrupt:
        return SkitError("interrupted; finished requests are kept, --resume goes on with the rest")
    except SkitError as error:
        return error
    return None


def _progress() -> AbstractContextManager[Report]:
    from specbench_kit.cli.progress import decoding_bar

    return decoding_bar()


def _print_conclusions(console: "Console", conclusions: "list[Conclusion]") -> None:
    from specbench_kit.reports.terminal import print_summary

    print_summary(console, conclusions[0].directory.run, [conclusion.summary for conclusion in conclusions])
    for conclusion in conclusions:
        say(console, f"report: {conclusion.directory.path / 'report.md'}")


def _as_json(conclusions: "list[Conclusion]") -> str:
    return json.dumps(
        {
            "run_dirs": [str(conclusion.directory.path) for conclusion in conclusions],
            "summary": {conclusion.summary["method"]: conclusion.summary for conclusion in conclusions},
        },
        allow_nan=False,
    )
