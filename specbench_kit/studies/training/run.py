"""One training run: from prompts or a trace to saved predictors and a report on what they are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.placing import deployment_key
from specbench_kit.models.catalogue import BUNDLED
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import DeploymentKey
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.training.examples import split_by_prompt
from specbench_kit.studies.training.experiment import TrainingExperiment, train
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.pair import identify, require_same_pair
from specbench_kit.studies.training.repeats import repeat
from specbench_kit.studies.training.saving import Price, make_predictors, save_predictors
from specbench_kit.studies.training.settings import MAX_DRAFT, PredictorTrainingSettings
from specbench_kit.studies.training.summary import summarise
from specbench_kit.studies.training.timing import Timing
from specbench_kit.traces.replay import recorded
from specbench_kit.traces.trace import DRAFT_STATISTICS, TraceFile

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PredictorTrainingOutcome:
    """What a training run leaves: its folder, what was run, its numbers, and the saved predictors by family."""

    folder: Path
    run: Fields
    summary: Fields
    saved: Mapping[str, Path]
    doubts: Sequence[str] = ()
    """Why nothing was saved."""


def run_training(
    settings: PredictorTrainingSettings, dataset: LoadedDataset | None, report: ProgressCallback
) -> PredictorTrainingOutcome:
    """Record or read, split, train, evaluate, write. `dataset` is recorded where the settings name no trace."""
    if dataset is not None:
        pair = identify(settings.target, settings.draft)
        folder = _folder(settings, pair, dataset.name, dataset.digest)
        trace = _record(settings, dataset, folder / "trace.parquet", report)
    else:
        trace, pair = _open(settings)
        folder = _folder(settings, pair, _dataset_of(trace)["name"], provenance.hash_file(trace.path))
    offsets = _cut(read_offsets(trace), settings, trace)
    place, *elsewhere = _places(settings, trace, offsets)
    experiment = train(settings, split_by_prompt(offsets, settings.seed), place[1], report, place[0], elsewhere)
    repeats = repeat(experiment, offsets, settings.repeats, partial(report, "repeating"))
    asked = sum(len(prompt.turns) for prompt in dataset.prompts) if dataset else len(trace)
    return _finish(folder, trace, pair, experiment, repeats, failed=asked - len(trace))


def _places(
    settings: PredictorTrainingSettings, trace: TraceFile, offsets: Offsets
) -> list[tuple[DeploymentKey, Timing]]:
    """Whose time counts, that of the report first."""
    context = round(float(offsets.context.mean()))
    deployments = (settings.deployment, *settings.elsewhere)
    return [(deployment_key(one), Timing.of(trace.header, one, context)) for one in deployments]


def _record(
    settings: PredictorTrainingSettings, dataset: LoadedDataset, path: Path, report: ProgressCallback
) -> TraceFile:
    max_draft = settings.max_draft or MAX_DRAFT
    record(settings.recording(), dataset, path, max_draft, lambda done, planned: report("recording", done, planned))
    return TraceFile(path)


def _open(settings: PredictorTrainingSettings) -> tuple[TraceFile, PairHashes]:
    """The trace and its pair; where models are named, they have to be these, and else need not be at hand."""
    assert settings.trace is not None
    trace = TraceFile(settings.trace)
    trace.header.require(DRAFT_STATISTICS, "predictors learn from statistics of drafted tokens")
    if settings.target == settings.draft == BUNDLED:
        return trace, PairHashes(*(trace.said("models", role, "hash") for role in ("target", "draft")))
    pair = identify(settings.target, settings.draft)
    require_same_pair(trace, pair)
    return trace, pair


def _cut(offsets: Offsets, settings: PredictorTrainingSettings, trace: TraceFile) -> Offsets:
    wanted, recorded = settings.max_draft or offsets.max_draft, offsets.max_draft
    if wanted > recorded:
        raise SkitError(
            f"the trace {trace.path} holds drafts of {recorded} tokens: ask for at most --max-draft {recorded}, "
            f"or record one with --max-draft {wanted}"
        )
    return offsets.cut(wanted)


def _folder(settings: PredictorTrainingSettings, pair: PairHashes, dataset: str, digest: str) -> Path:
    defining = {**settings.described(), "pair": pair.short, "digest": digest}
    return unused_folder(settings.out, "train-predictor", dataset, defining)


def _dataset_of(trace: TraceFile) -> Fields:
    return trace.header.run.get("dataset") or {"name": trace.path.stem}


def _finish(
    folder: Path, trace: TraceFile, pair: PairHashes, experiment: TrainingExperiment, repeats: Fields, failed: int
) -> PredictorTrainingOutcome:
    """Numbers, plots, report and predictors; `failed` requests did not fit the context and are not in the trace."""
    from specbench_kit.reports.predictor.plots import write_plots
    from specbench_kit.reports.predictor.report import render

    run, summary = _describe(trace, experiment.settings, failed), summarise(experiment) | {"repeats": repeats}
    training = {name: run[name] for name in ("dataset", "models", "trace", "config", "versions")}
    training["prompts"] = trace.header.run.get("prompts")
    predictors = make_predictors(experiment, summary, pair, training, run["started_at"], Price.of(trace.header))
    doubts = [] if experiment.settings.force else disturbances(run.get("machine", []))
    saved = save_predictors(predictors, folder, experiment.settings, elsewhere=not doubts)
    write_plots(folder / "plots", summary, experiment.evaluation.judged(), run["dataset"].get("name", trace.path.stem))
    write_text(folder / "report.md", render(run, summary))
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    return PredictorTrainingOutcome(folder, run, summary, saved, doubts)


def _describe(trace: TraceFile, settings: PredictorTrainingSettings, failed: int) -> Fields:
    """The content of `run.json`; `machine` is how quiet it was when the steps were timed that tuning goes by."""
    machine = trace.header.run.get("machine", []) if settings.timed_here else []
    return {
        "command": "train-predictor",
        "dataset": _dataset_of(trace),
        "models": trace.header.run["models"],
        "trace": trace.describe(),
        "config": settings.described(),
        "requests": {"recorded": len(trace), "failed": failed},
        **describe_time(settings.deployment or recorded(trace.header)),
        **provenance.collect(settings.argv),
        **({"machine": machine} if machine else {}),
    }
