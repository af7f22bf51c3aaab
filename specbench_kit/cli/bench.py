"""`skit bench`: decode datasets with methods and report."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, require_all, say
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Given
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.processes.rank import by_torchrun
from specbench_kit.studies.bench.settings import BenchSettings, Sources

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.bench.campaign import Campaign
    from specbench_kit.studies.bench.lanes import Progress
    from specbench_kit.studies.bench.outputs.conclusion import Conclusion

Report = Callable[["Progress"], None]


def bench(options_given: Given[BenchSettings], sources: Sources, as_json: options.JsonOption = False) -> None:
    """Decode a dataset with one or more methods, check losslessness, and write a report."""
    from rich.console import Console

    from specbench_kit.deployments.loading import load

    place = by_torchrun()
    if place is not None and place.rank:
        from specbench_kit.decoding.processes.worker import serve

        serve(place, options_given.values.get("device", "auto"))
        return
    launch = {} if place is None else {"launch": "processes"}
    placed = load(sources.deployment, sources.replaced)
    settings = options_given.make(**launch, deployment=placed, argv=command_line())
    console = Console(stderr=as_json)
    _doubt_tuning(settings, console)
    problem = None
    if sources.replay is not None:
        conclusions, left_out = _replay(settings, sources.replay)
    else:
        campaign = _prepare(settings, sources, console)
        left_out = campaign.bench.left_out
        if outlook := campaign.outlook:
            say(console, outlook)
        problem = _decode(campaign)
        conclusions = campaign.conclude()
    folder = _report(console, settings.out, conclusions)
    for spec, reason in left_out.items():
        say(console, f"left out: {spec}: {reason}")
    if as_json:
        print(json.dumps(_document(conclusions, left_out, folder), allow_nan=False))
    if problem is not None:
        raise problem
    if sources.strict:
        require_all({one.summary["method"]: one.summary["requests"]["failed"] for one in conclusions})


def _doubt_tuning(settings: BenchSettings, console: "Console") -> None:
    """Say where tuned options were tuned for something else."""
    if settings.tuned is None:
        return
    from specbench_kit.studies.bench.tuned_options import load

    name = settings.deployment.name if settings.deployment else "recorded"
    for doubt in load(settings.tuned).doubts(name, settings.batch_size):
        say(console, f"{settings.tuned}: {doubt}")


def _prepare(settings: BenchSettings, sources: Sources, console: "Console") -> "Campaign":
    """Check the cheap things first: method names, then data, then models."""
    from specbench_kit.methods.spec import parse_method
    from specbench_kit.studies.bench.choice import chosen

    if len(set(sources.dataset)) < len(sources.dataset):
        raise SkitError("a dataset is given twice: name each --dataset once")
    for spec in chosen(settings):
        if parse_method(spec).needs_reference and not settings.baseline:
            say(console, f"{spec} reads the autoregressive output: the baseline is decoded despite --no-baseline")
    each = [DatasetOptions(dataset=name, data_dir=sources.data_dir, sample=sources.sample) for name in sources.dataset]
    loaded = [load_dataset(one, settings.limit, settings.seed, console) for one in each]
    with _preparing(console) as report:
        from specbench_kit.studies.bench.campaign import Campaign

        campaign = Campaign(settings, loaded, report)
    for benchmark in campaign.benchmarks:
        if left_out := benchmark.dataset.left_out:
            without = f"drawn without the {len(left_out)} prompts that a predictor or head was trained on"
            say(console, f"{benchmark.dataset.name}: {without}")
    for note in [*campaign.bench.measured.notes, *campaign.notes]:
        say(console, note)
    return campaign


@contextmanager
def _preparing(console: "Console") -> "Iterator[ProgressCallback]":
    """A line while models load, and bars in its place once something is measured."""
    from specbench_kit.cli.progress import stepping_bar

    with ExitStack() as stack:
        status = stack.enter_context(console.status("loading models"))
        bars: list[ProgressCallback] = []

        def report(step: str, done: int, planned: int) -> None:
            if not bars:
                status.stop()
                bars.append(stack.enter_context(stepping_bar()))
            bars[0](step, done, planned)

        yield report


def _replay(settings: BenchSettings, path: Path) -> "tuple[list[Conclusion], dict[str, str]]":
    if settings.temperature or settings.resume:
        raise SkitError("--replay runs a recorded greedy trace from its start: leave out --temperature and --resume")
    if settings.exclude_seen:
        raise SkitError("--exclude-seen chooses prompts, and a trace has its own: leave out one of them")
    if settings.token_view:
        raise SkitError("--token-view shows the trees of a live run, which a trace does not hold: leave out --replay")
    if settings.repeats > 1:
        raise SkitError("--repeats measures again, and a replay is the same every time: leave out one of them")
    from specbench_kit.studies.bench.replay import bench_replay

    with _progress() as report:
        return bench_replay(settings, path, report)


def _decode(campaign: "Campaign") -> SkitError | None:
    """Decode under a progress bar; what ends it early is returned, so that finished requests get their report."""
    try:
        with _progress() as report:
            campaign.run(report)
    except KeyboardInterrupt:
        return SkitError("interrupted; finished requests are kept, --resume goes on with the rest")
    except SkitError as error:
        return error
    return None


def _progress() -> AbstractContextManager[Report]:
    from specbench_kit.cli.progress import decoding_bar

    return decoding_bar()


def _report(console: "Console", out: Path, conclusions: "Sequence[Conclusion]") -> Path | None:
    """Print the result; several runs get one more folder, which is returned, with a report on all of them."""
    from specbench_kit.reports.comparison.terminal import print_comparison
    from specbench_kit.reports.run.terminal import print_summary
    from specbench_kit.studies.bench.outputs.joint_report import report_jointly

    directories = [conclusion.directory for conclusion in conclusions]
    joint = report_jointly(out, conclusions)
    if joint is not None:
        print_comparison(console, joint[1])
    else:
        print_summary(console, directories[0].run, [conclusion.summary for conclusion in conclusions])
    for folder in [joint[0]] if joint is not None else [directory.path for directory in directories]:
        say(console, f"report: {folder / 'report.md'}")
    return None if joint is None else joint[0]


def _by_dataset(conclusions: "Sequence[Conclusion]") -> "dict[str, list[Conclusion]]":
    found: dict[str, list[Conclusion]] = {}
    for conclusion in conclusions:
        found.setdefault(conclusion.directory.run["dataset"]["name"], []).append(conclusion)
    return found


def _document(conclusions: "Sequence[Conclusion]", left_out: dict[str, str], folder: Path | None) -> dict[str, Any]:
    """Summaries by method; where there are several datasets, by dataset and method."""
    from specbench_kit.reports.writing import machine

    warnings = machine.of_all(conclusion.directory.run for conclusion in conclusions)
    by_dataset = {
        name: {conclusion.summary["method"]: conclusion.summary for conclusion in together}
        for name, together in _by_dataset(conclusions).items()
    }
    return {
        "run_dirs": [str(conclusion.directory.path) for conclusion in conclusions],
        "summary": by_dataset if len(by_dataset) > 1 else next(iter(by_dataset.values())),
        **({"report_dir": str(folder)} if folder else {}),
        **({"left_out": left_out} if left_out else {}),
        **({"warnings": warnings} if warnings else {}),
    }
