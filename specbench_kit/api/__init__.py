"""The kit from Python: the commands as functions that print nothing. Options have the commands'
names and defaults.

Import it before torch, where you import both: torch's threads then leave the processors to the
native executors, which makes draft models and heads faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from specbench_kit.api.result import Result, Study
from specbench_kit.cli.command import options_of
from specbench_kit.cli.commands import commands
from specbench_kit.core.errors import MethodError, require
from specbench_kit.core.option import OptionValues, from_keywords, options_in, select_fields
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.without_effect import flag_of, refuse_without_effect
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import load as load_deployment
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.serving.events import parse_window
from specbench_kit.serving.options import OutputOptions, RecordingOptions
from specbench_kit.studies.bench.campaign import Campaign
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.fresh_processes import decode_in_processes
from specbench_kit.studies.bench.kind import BENCH
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings, require_distinct
from specbench_kit.studies.kinds import folder_of, kind_in, studies_in
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.serving_run import ServingRun
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.studies.sweep.run import run_sweep
from specbench_kit.studies.sweep.settings import SweepSettings
from specbench_kit.studies.training.run import run_training
from specbench_kit.studies.training.settings import PredictorTrainingSettings

__all__ = ["Result", "Study", "bench", "load", "replay", "simulate", "sweep", "train"]

Names = str | Sequence[str]
RequestCallback = Callable[[Progress], None]
Parameters = ParamSpec("Parameters")
Outcome = TypeVar("Outcome")


def _with_effect(
    command: str, trace: str = "trace"
) -> Callable[[Callable[Parameters, Outcome]], Callable[Parameters, Outcome]]:
    """Return a decorator of a function that does what a command does, and refuses the same options
    without effect.

    `trace` is the command's name for the function's parameter of that name.
    """

    def decorate(function: Callable[Parameters, Outcome]) -> Callable[Parameters, Outcome]:
        parameters = signature(function)

        @wraps(function)
        def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Outcome:
            bound = parameters.bind(*arguments, **keywords).arguments
            options = {**bound, **bound.get("options", {})}
            given = {
                trace if name == "trace" else name: value
                for name, value in options.items()
                if value is not None
            }
            of_command = {one.name: one.option for one in options_of(commands.get(command).load())}
            refuse_without_effect(of_command, given, flag_of)
            return function(*arguments, **keywords)

        return checked

    return decorate


@_with_effect("bench")
def bench(
    methods: Names,
    dataset: Names = "gsm8k",
    *,
    deployment: str | Deployment | None = None,
    replaced: Sequence[str] = (),
    data_dir: str | Path | None = None,
    sample: bool = True,
    tell: Callable[[str], None] | None = None,
    progress: RequestCallback | None = None,
    **options: object,
) -> Result:
    """Benchmark methods on datasets, as `skit bench` does.

    `deployment` is a name, a .toml file or None for this machine; `replaced` changes its fields, as in
    `link.rtt_s=0.04`. `options` are the fields of `studies.bench.settings.BenchSettings`, such as `limit`,
    `batch_size`, `temperature` and `out`. `tell` receives notes for the user before decoding starts, `progress` every
    finished request. Raise SkitError if an option, a model or a dataset cannot be used; finished requests are kept,
    and `resume=True` continues with the others. With `processes`, a script keeps this call behind
    `if __name__ == "__main__":`, since each process loads the script.
    """
    settings = _settings(methods, deployment, replaced, options)
    require_distinct(_as_list(dataset))
    prompts = [
        _prompts(name, data_dir, sample, settings.limit, settings.seed)
        for name in _as_list(dataset)
    ]
    if settings.processes > 1:
        outcome = decode_in_processes(settings, prompts, tell or _silent, progress or _silent)
        require(outcome.problem is None, str(outcome.problem))
        return _result(outcome.conclusions(), outcome.left_out)
    with Campaign(settings, prompts, _silent) as campaign:
        for note in [*campaign.bench.measured.notes, *campaign.notes]:
            (tell or _silent)(note)
        try:
            campaign.run(progress or _silent)
        except MethodError:
            campaign.write_results()  # the other methods went on, and have their reports
            raise
        return _result(campaign.write_results(), campaign.bench.prepared.left_out)


@_with_effect("bench", trace="replay")
def replay(
    methods: Names,
    trace: str | Path,
    *,
    deployment: str | Deployment | None = None,
    replaced: Sequence[str] = (),
    progress: RequestCallback | None = None,
    **options: object,
) -> Result:
    """Replay chain methods on a trace of `skit record`, without models, as `skit bench --replay`
    does.
    """
    settings = _settings(methods, deployment, replaced, options)
    conclusions, left_out, _ = bench_replay(settings, Path(trace), progress or _silent)
    return _result(conclusions, left_out)


@_with_effect("sweep")
def sweep(
    methods: Names,
    *,
    deployment: str = "local",
    dataset: str = "gsm8k",
    data_dir: str | Path | None = None,
    sample: bool = True,
    progress: ProgressCallback | None = None,
    **options: object,
) -> Study:
    """Compare methods over a grid of deployments and options, as `skit sweep` does.

    `options` are the fields of `studies.sweep.options.SweepOptions`: `replaced=["link.rtt_s=0.01,0.04"]` is the grid,
    `trace` a recorded trace instead of models. `progress` is called with the step, its finished and its planned items.
    """
    settings = from_keywords(
        SweepSettings, {**options, "methods": methods, "deployment": deployment}
    )
    settings.points()  # an error in the grid is raised before anything is loaded
    prompts = None
    if settings.trace is None and not settings.synthetic:
        prompts = _prompts(dataset, data_dir, sample, settings.prompts, settings.seed)
    return Study(run_sweep(settings, prompts, progress or _silent))


@_with_effect("simulate")
def simulate(
    system: Names = "wisp", *, progress: ProgressCallback | None = None, **options: Any
) -> Study:
    """Simulate many devices that share one verification server, as `skit simulate` does.

    `options` are the fields of `serving.options.SimulationOptions`, such as `devices`, `acceptance` and `deployment`.
    Without `acceptance`, a trace is recorded first, as the fields of `serving.options.RecordingOptions` say. `events`
    and `timeline` are those of `serving.options.OutputOptions`.
    """
    recording_names = {field.name for field, _, _ in options_in(RecordingOptions)}
    recorded = from_keywords(
        RecordingOptions, {name: options.pop(name) for name in recording_names & options.keys()}
    )
    output_names = options.keys() & {"events", "timeline"}
    output = from_keywords(OutputOptions, {name: options.pop(name) for name in output_names})
    window = parse_window(output.timeline) if output.timeline else None
    recording = RecordingSettings(
        seed=options.get("seed", 0),
        **select_fields(RecordingSettings, asdict(recorded)),
    )
    settings = from_keywords(ServingSettings, {**options, "system": system}, recording=recording)
    settings.points()  # an error in the grid is raised before anything is loaded
    prompts = None
    if settings.records:
        prompts = _prompts(
            recorded.dataset, recorded.data_dir, recorded.sample, recorded.limit, recording.seed
        )
    run = ServingRun(settings=settings, dataset=prompts, report=progress or _silent)
    return Study(run.simulate(output.events, window))


@_with_effect("train-predictor")
def train(
    dataset: str = "gsm8k",
    *,
    deployments: Names = "local",
    data_dir: str | Path | None = None,
    sample: bool = True,
    progress: ProgressCallback | None = None,
    **options: object,
) -> Study:
    """Train rejection predictors for `wisp` and evaluate if they pay off, as `skit train-predictor`
    does.

    `options` are the fields of `studies.training.options.TrainingOptions`, such as `limit`, `trials`, `families` and
    `trace`. The rows of the result are stopping criteria; its `saved` holds the folders of saved predictors.
    """
    first, *others = (load_deployment(name) for name in _as_list(deployments))
    settings = from_keywords(
        PredictorTrainingSettings, options, deployment=first, further_deployments=tuple(others)
    )
    prompts = None
    if settings.trace is None:
        prompts = _prompts(dataset, data_dir, sample, settings.limit, settings.seed, to_train=True)
    outcome = run_training(settings, prompts, progress or _silent)
    return Study(outcome.study, dict(outcome.saved))


def load(*folders: str | Path, force: bool = False) -> Result | Study:
    """Return what folders hold: benchmark runs in them or right below them, or the result of
    another command.

    A folder of benchmarks' result without its runs stands alone, as does the folder of any other
    command. Runs that cannot be compared share no table unless `force` is set; `groups` of the
    result holds those that can.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) == 1 and (kind := kind_in(folder_of(paths[0]))):
        if not kind.joint:
            return Study(studies_in(paths[0])[0])
        if kind.find(paths[0]):
            return Result([], kept=BENCH.read(paths[0]))
    runs, _ = load_runs(paths)
    return Result([run.path for run in runs], pooled=force)


def _settings(
    methods: Names,
    deployment: str | Deployment | None,
    replaced: Sequence[str],
    options: OptionValues,
) -> BenchSettings:
    if not isinstance(deployment, Deployment):
        deployment = load_deployment(deployment or "local", replaced)
    return from_keywords(BenchSettings, {**options, "methods": methods}, deployment=deployment)


def _as_list(names: Names) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _prompts(
    name: str,
    data_dir: str | Path | None,
    sample: bool,
    limit: int | None,
    seed: int,
    *,
    to_train: bool = False,
) -> LoadedDataset:
    folder = Path(data_dir) if data_dir is not None else None
    return load_dataset(
        name, data_dir=folder, allow_sample=sample, limit=limit, seed=seed, to_train=to_train
    )


def _result(conclusions: Sequence[Conclusion], left_out: Mapping[str, str]) -> Result:
    folders = [conclusion.directory.path for conclusion in conclusions]
    # A run without a single answer is named among the problems, as where folders are read.
    at_hand = all(one.requests is not None and one.requests.records for one in conclusions)
    made = [conclusion.run() for conclusion in conclusions] if at_hand else []
    return Result(folders, dict(left_out), pooled=True, made=made)


def _silent(*_: object) -> None:
    return None
