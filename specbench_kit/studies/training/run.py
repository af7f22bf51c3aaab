"""One training run: from prompts or a trace to saved predictors and a report on what they are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.drafting.base import Capability, parse_drafter
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.placing import deployment_key
from specbench_kit.models.catalogue import AUTO as BEST_TARGET
from specbench_kit.models.draft_library import AUTO
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.training.examples import split_by_prompt
from specbench_kit.studies.training.experiment import TrainingExperiment, train
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.pair import identify, require_same_pair
from specbench_kit.studies.training.repeats import repeat
from specbench_kit.studies.training.saving import DecisionCost, make_predictors, save_predictors
from specbench_kit.studies.training.settings import MAX_DRAFT, PredictorTrainingSettings
from specbench_kit.studies.training.summary import summarise
from specbench_kit.studies.training.timing import Timing
from specbench_kit.traces.replay import recorded_pair, recording_deployment
from specbench_kit.traces.trace import DRAFT_STATISTICS, TraceFile


@dataclass(frozen=True, slots=True)
class PredictorTrainingOutcome:
    """The folder of a training run, its `run.json` and `summary.json`, and the folders of predictors by family.

    `doubts` say what disturbed the machine, for which reason the predictors are used only where they are named.
    """

    folder: Path
    run: dict[str, Any]
    summary: dict[str, Any]
    saved: Mapping[str, Path]
    doubts: Sequence[str] = ()


def run_training(
    settings: PredictorTrainingSettings, dataset: LoadedDataset | None, report: ProgressCallback
) -> PredictorTrainingOutcome:
    """Record or read a trace, split, train, evaluate and write. `dataset` is recorded if the settings name no trace."""
    if dataset is not None:
        pair = identify(settings.target, settings.draft)
        folder = _folder(settings, pair, dataset.name, dataset.digest)
        max_draft, path = settings.max_draft or MAX_DRAFT, folder / "trace.parquet"
        record(settings.recording(), dataset, path, max_draft, partial(report, "recording"))
        trace = TraceFile(path)
        requests = sum(len(prompt.turns) for prompt in dataset.prompts)
    else:
        trace, pair = _open(settings)
        folder = _folder(settings, pair, _dataset_of(trace)["name"], provenance.hash_file(trace.path))
        requests = len(trace)
    offsets = _read_offsets(settings, trace)
    context = round(float(offsets.context.mean()))
    (key, timing), *further = (
        (deployment_key(deployment), Timing.of(trace.header, deployment, context))
        for deployment in (settings.deployment, *settings.further_deployments)
    )
    experiment = train(settings, split_by_prompt(offsets, settings.seed), timing, report, key, further)
    repeats = repeat(experiment, offsets, settings.repeats, partial(report, "repeating"))
    return _finish(folder, trace, pair, experiment, repeats, failed=requests - len(trace))


def _open(settings: PredictorTrainingSettings) -> tuple[TraceFile, PairHashes]:
    """Return the trace and its pair; models that are named have to be the trace's, others need not exist here."""
    assert settings.trace is not None
    trace = TraceFile(settings.trace)
    trace.header.require(DRAFT_STATISTICS, "predictors learn from statistics of drafted tokens")
    drafting = parse_drafter(trace.header.drafter)
    require(
        drafting.capability >= Capability.STATISTICS,
        f"predictors learn from statistics of drafted tokens, and drafter '{drafting.display_name}' has no more than "
        f"{drafting.capability.words}: record a trace with --drafter model or head",
    )
    if settings.target == BEST_TARGET and settings.draft == AUTO:
        return trace, recorded_pair(trace)
    pair = identify(settings.target, settings.draft)
    require_same_pair(trace, pair)
    return trace, pair


def _read_offsets(settings: PredictorTrainingSettings, trace: TraceFile) -> Offsets:
    """Return the trace's offsets with drafts of the length that the settings ask for."""
    offsets = read_offsets(trace)
    max_draft = settings.max_draft or offsets.max_draft
    if max_draft > offsets.max_draft:
        raise SkitError(
            f"the trace {trace.path} holds drafts of {offsets.max_draft} tokens: give at most --max-draft "
            f"{offsets.max_draft}, or record a trace with --max-draft {max_draft}"
        )
    return offsets.cut(max_draft)


def _folder(settings: PredictorTrainingSettings, pair: PairHashes, dataset: str, digest: str) -> Path:
    defining = {**settings.described(), "pair": pair.short, "digest": digest}
    return unused_folder(settings.out, "train-predictor", dataset, defining)


def _dataset_of(trace: TraceFile) -> dict[str, Any]:
    return trace.header.run.get("dataset") or {"name": trace.path.stem}


def _finish(
    folder: Path,
    trace: TraceFile,
    pair: PairHashes,
    experiment: TrainingExperiment,
    repeats: Mapping[str, object],
    failed: int,
) -> PredictorTrainingOutcome:
    """Write numbers, plots, report and predictors; `failed` requests did not fit the context."""
    from specbench_kit.reports.page_files import write_page
    from specbench_kit.reports.predictor.plots import write_plots
    from specbench_kit.reports.predictor.report import build

    settings = experiment.settings
    run, summary = _describe(trace, settings, failed), summarise(experiment) | {"repeats": repeats}
    training = {name: run[name] for name in ("dataset", "models", "trace", "config", "versions")}
    training["prompts"] = trace.header.run.get("prompts")
    disturbed = disturbances(run.get("machine", []))
    if disturbed:
        training |= {"disturbed": disturbed, "forced": settings.force}
    predictors = make_predictors(experiment, summary, pair, training, run["started_at"], DecisionCost.of(trace.header))
    doubts = [] if settings.force else disturbed
    # Thresholds that were chosen by the time of a disturbed machine must not replace those of a quiet one.
    saved = save_predictors(predictors, folder, settings, suffix="-disturbed" if doubts else "")
    write_plots(folder / "plots", summary, experiment.evaluation.judged(), run["dataset"].get("name", trace.path.stem))
    write_page(folder, build(run, summary))
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    return PredictorTrainingOutcome(folder, run, summary, saved, doubts)


def _describe(trace: TraceFile, settings: PredictorTrainingSettings, failed: int) -> dict[str, Any]:
    """Return the content of `run.json`.

    `machine` are the readings of the machine while the steps were timed, if thresholds are chosen by these times.
    """
    machine = trace.header.run.get("machine", []) if settings.timed_here else []
    return {
        "command": "train-predictor",
        "dataset": _dataset_of(trace),
        "models": trace.header.run["models"],
        "trace": trace.describe(),
        "config": settings.described(),
        "requests": {"recorded": len(trace), "failed": failed},
        **describe_time(settings.deployment or recording_deployment(trace.header)),
        **provenance.collect(settings.argv),
        **({"machine": machine} if machine else {}),
    }
