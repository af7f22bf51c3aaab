"""`skit bench`: benchmark methods on datasets and write reports."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    print_json,
    require_all,
    say,
    say_left_out,
    say_report,
    say_target,
)
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import Interrupted, MethodError, SkitError, require
from specbench_kit.core.option import Given, recorded_names, recorded_values
from specbench_kit.decoding.processes.rank import rank_by_torchrun
from specbench_kit.live.connection_options import ConnectionOptions
from specbench_kit.studies.bench.settings import REPLAYED, BenchSettings, Sources, require_distinct
from specbench_kit.studies.bench.terminal import print_run

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.metrics.run_summary import RunSummary
    from specbench_kit.reports.study import Printed
    from specbench_kit.studies.bench.campaign import Campaign
    from specbench_kit.studies.bench.conclusion import Conclusion
    from specbench_kit.studies.bench.fresh_processes import ProcessOutcome
    from specbench_kit.studies.bench.replay import Replayed


CONNECTION = tuple(field.name for field in fields(ConnectionOptions))


def bench(
    options: Annotated[Given[BenchSettings], REPLAYED.of(*CONNECTION)],
    sources: Sources,
    as_json: JsonOption = False,
) -> None:
    """Decode, print the result, and end with an error if decoding was cut short."""
    from rich.console import Console

    from specbench_kit.deployments.loading import load

    rank = rank_by_torchrun()
    if rank is not None and rank.rank:
        # torchrun starts this command once for each stage of the pipeline; only the first one
        # benchmarks.
        from specbench_kit.decoding.processes.worker import serve

        serve(rank, str(options.values.get("device", "auto")))
        return
    launch = {} if rank is None else {"launch": "processes"}
    deployment = load(sources.deployment, sources.replaced)
    settings = options.make(**launch, deployment=deployment, argv=command_line())
    if sources.replay is not None and settings.tuned is not None:
        from specbench_kit.studies.bench.replay import with_recorded_target

        settings = with_recorded_target(settings, sources.replay)
    if (
        settings.resume and sources.replay is None
    ):  # a replay is refused below: nothing of it is kept
        from specbench_kit.runs.directory import require_resumable

        require_resumable(
            settings.out, recorded_values(settings), recorded_names(BenchSettings), settings.argv
        )
    console = Console(stderr=as_json)
    _warn_of_other_tuning(settings, console)
    problem: SkitError | None = None
    if sources.replay is not None:
        conclusions, left_out, lost = _replay(settings, sources.replay, console)
        # What was named and the trace could not serve is an error, after the report on the others.
        if lost:
            problem = MethodError(f"{', '.join(lost)}: left out, as said above")
            causes = (error.__cause__ for error in lost.values() if isinstance(error, MethodError))
            problem.__cause__ = next(causes, None)
    elif settings.processes > 1:
        require(
            rank is None, "--processes starts its processes by itself: leave it out under torchrun"
        )
        outcome = _decode_in_processes(settings, sources, console)
        conclusions, left_out = outcome.conclusions(), outcome.left_out
        kind = Interrupted if outcome.interrupted else MethodError if outcome.broken else SkitError
        problem = kind(outcome.problem) if outcome.problem else None
        if problem is not None and not conclusions:
            raise problem
    else:
        with _prepare(settings, sources, console) as campaign:
            left_out = campaign.bench.prepared.left_out
            problem = _decode(campaign, console)
            conclusions = _write_results(campaign)
        if isinstance(problem, Interrupted) and not conclusions:
            raise problem
    if isinstance(problem, MethodError) and not any(
        conclusion.directory.has_begun for conclusion in conclusions
    ):
        raise problem
    folder = _report(console, settings.out, conclusions, left_out)
    if as_json:
        print_json(_document(conclusions, left_out, folder))
    if problem is not None:
        raise problem
    if sources.strict:
        summaries = [conclusion.summary for conclusion in conclusions]
        require_all({summary.method: summary.requests.failed for summary in summaries})


def _warn_of_other_tuning(settings: BenchSettings, console: "Console") -> None:
    from specbench_kit.reports.sections.cautions import tuning_cautions
    from specbench_kit.runs.document import RunDescription
    from specbench_kit.studies.bench.choice import describe_tuning

    tuning = describe_tuning(settings)
    for line in tuning_cautions(
        RunDescription.read({"method": spec, **said}) for spec, said in tuning.items()
    ):
        say(console, line, style="yellow")


def _load_datasets(
    settings: BenchSettings, sources: Sources, console: "Console"
) -> "list[LoadedDataset]":
    """Load the prompts after the quick checks of method names."""
    from specbench_kit.methods.spec import parse_method
    from specbench_kit.studies.bench.choice import chosen

    require_distinct(sources.dataset)
    for spec in chosen(settings):
        if parse_method(spec).needs_reference and not settings.baseline:
            say(
                console,
                f"{spec} needs the autoregressive output: the baseline is decoded in spite of --no-baseline",
            )
    datasets = []
    for name in sources.dataset:
        options = DatasetOptions(dataset=name, data_dir=sources.data_dir, sample=sources.sample)
        datasets.append(load_dataset(options, settings.limit, settings.seed, console))
    if settings.server is None:
        say_target(console, settings.target)
    return datasets


def _decode_in_processes(
    settings: BenchSettings, sources: Sources, console: "Console"
) -> "ProcessOutcome":
    """Decode in processes of their own, under one progress bar."""
    from specbench_kit.cli.progress import decoding_bar

    datasets = _load_datasets(settings, sources, console)
    # This loads torch, so that it comes after the checks that need none of it.
    from specbench_kit.studies.bench.fresh_processes import decode_in_processes

    with decoding_bar() as report:
        return decode_in_processes(settings, datasets, lambda note: say(console, note), report)


def _prepare(settings: BenchSettings, sources: Sources, console: "Console") -> "Campaign":
    """Load what decoding needs, the quick checks first: method names, then data, then models."""
    from specbench_kit.cli.progress import loading_bar
    from specbench_kit.methods.predictor_based import predictor_notes

    datasets = _load_datasets(settings, sources, console)
    # This loads torch, so that it comes after the checks that need none of it.
    from specbench_kit.studies.bench.campaign import NOTHING_KEPT, Campaign

    try:
        with loading_bar(console) as report:
            campaign = Campaign(settings, datasets, report)
    except KeyboardInterrupt:  # while models are loaded or timed
        raise Interrupted(NOTHING_KEPT) from None
    for note in campaign.bench.seen_notes():
        say(console, note)
    for note in [
        *predictor_notes(campaign.bench.prepared.methods.values()),
        *campaign.bench.measured.notes,
        *campaign.notes,
    ]:
        say(console, note)
    return campaign


def _replay(settings: BenchSettings, trace: Path, console: "Console") -> "Replayed":
    from specbench_kit.cli.progress import decoding_bar
    from specbench_kit.studies.bench.replay import bench_replay

    with decoding_bar() as report:
        return bench_replay(settings, trace, report, lambda note: say(console, note))


def _decode(campaign: "Campaign", console: "Console") -> SkitError | None:
    """Decode under a progress bar; an early end is returned, so that finished requests are still
    reported.
    """
    from specbench_kit.cli.progress import decoding_bar

    try:
        if outlook := campaign.outlook:
            say(console, outlook)
        with decoding_bar() as report:
            try:
                campaign.run(report)
            except SkitError as error:
                return error
    except KeyboardInterrupt:
        return Interrupted(campaign.end_interrupted())
    return None


def _write_results(campaign: "Campaign") -> "list[Conclusion]":
    """Check outputs and write reports, under a bar: a large model that is asked anew takes
    minutes.
    """
    from specbench_kit.cli.progress import counting_bar

    with counting_bar("checking outputs", transient=True) as report:
        return campaign.write_results(report)


def _report(
    console: "Console", out: Path, conclusions: "Sequence[Conclusion]", left_out: dict[str, str]
) -> Path | None:
    """Print the result and what was left out; for several runs, write a joint report and return its
    folder.
    """
    from specbench_kit.studies.bench.conclusion import report_jointly

    # Beside others, a run whose policy failed before its first answer has nothing to show.
    begun = [one for one in conclusions if one.directory.has_begun] or conclusions
    joint = report_jointly(out, conclusions)
    if joint is not None:
        joint.kind.print(console, joint)
    else:
        for conclusion in begun:
            print_run(console, conclusion)
    say_left_out(console, left_out, in_report=joint is not None)
    folders = [joint.folder] if joint else [one.directory.path for one in begun]
    for folder in folders:
        say_report(console, folder)
    return joint.folder if joint else None


def _document(
    conclusions: "Sequence[Conclusion]", left_out: dict[str, str], folder: Path | None
) -> "Printed":
    """Return the JSON result: summaries by method or, for several datasets, by dataset and
    method.
    """
    from specbench_kit.reports.sections import machine

    warnings = machine.warnings(*(conclusion.directory.document for conclusion in conclusions))
    summaries: dict[str, dict[str, RunSummary]] = {}
    for conclusion in conclusions:
        by_method = summaries.setdefault(str(conclusion.directory.document.dataset.name), {})
        by_method[conclusion.summary.method] = conclusion.summary
    return {
        "run_dirs": [str(conclusion.directory.path) for conclusion in conclusions],
        "summary": summaries if len(summaries) > 1 else next(iter(summaries.values())),
        **({"report_dir": str(folder)} if folder else {}),
        **({"left_out": left_out} if left_out else {}),
        **({"warnings": warnings} if warnings else {}),
    }
