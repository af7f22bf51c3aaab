"""One training run: from prompts or a trace to saved predictors and a report on what they are
worth.

Trainings on other splits with other seeds say how much of that is luck.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs, to_builtins

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.drafting.base import Capability, parse_drafter
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.placing import deployment_key
from specbench_kit.metrics.statistics import interval_of_resplits
from specbench_kit.models.catalogue import AUTO as BEST_TARGET
from specbench_kit.models.draft_library import AUTO
from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.artefact import Predictor
from specbench_kit.predictors.base import families
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.scoring import calibration
from specbench_kit.predictors.search import SearchResult, SearchTrial
from specbench_kit.reports.study import finish
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.machine.limits import disturbances, read_machine
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.training.contenders import Contender, TrainedFamily
from specbench_kit.studies.training.evaluation import TrainingExperiment, labels_and_scores, train
from specbench_kit.studies.training.examples import (
    SHARES,
    acceptance_curves,
    correlations,
    describe_split,
    extract,
    split_by_prompt,
)
from specbench_kit.studies.training.kind import TRAINING, TrainingStudy
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.settings import MAX_DRAFT, PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing
from specbench_kit.studies.training.wording import (
    CalibrationBins,
    ContenderSummary,
    FamilySummary,
    RepeatedRatio,
    Repeats,
    TrainingSummary,
)
from specbench_kit.traces.replay import (
    identify_pair,
    recorded_pair,
    recording_deployment,
    require_same_pair,
)
from specbench_kit.traces.trace import DRAFT_STATISTICS, TraceFile, TraceHeader


@dataclass(frozen=True, slots=True)
class TrainedPredictors:
    """A training run, and the folders of predictors by family.

    `doubts` say what disturbed the machine, for which reason the predictors are used only where they are named.
    """

    study: TrainingStudy
    saved: Mapping[str, Path]
    doubts: Sequence[str] = ()


def run_training(
    settings: PredictorTrainingSettings, dataset: LoadedDataset | None, report: ProgressCallback
) -> TrainedPredictors:
    """Record or read a trace, split, train, evaluate and write. `dataset` is recorded if the
    settings name no trace.
    """
    if dataset is not None:
        pair = identify_pair(settings.target, settings.draft)
        folder = _folder(settings, pair, dataset.name, dataset.digest)
        max_draft = settings.max_draft or MAX_DRAFT
        path = folder / "trace.parquet"
        record(settings.recording(), dataset, path, max_draft, partial(report, "recording"))
        trace = TraceFile(path)
        requests = sum(len(prompt.turns) for prompt in dataset.prompts)
    else:
        trace, pair = _open(settings)
        folder = _folder(
            settings, pair, _dataset_of(trace)["name"], provenance.hash_file(trace.path)
        )
        requests = len(trace)
    offsets = _read_offsets(settings, trace)
    context = round(float(offsets.context.mean()))
    (key, timing), *further = (
        (deployment_key(deployment), Timing.of(trace.header, deployment, context))
        for deployment in (settings.deployment, *settings.further_deployments)
    )
    experiment = train(
        settings, split_by_prompt(offsets, settings.seed), timing, report, key, further
    )
    repeats = repeat(experiment, offsets, settings.repeats, partial(report, "repeating"))
    return _finish(folder, trace, pair, experiment, repeats, failed=requests - len(trace))


def _open(settings: PredictorTrainingSettings) -> tuple[TraceFile, PairHashes]:
    """Return the trace and its pair; models that are named have to be the trace's, others need not
    exist here.
    """
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
    pair = identify_pair(settings.target, settings.draft)
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


def _folder(
    settings: PredictorTrainingSettings, pair: PairHashes, dataset: str, digest: str
) -> Path:
    defining = {**settings.described(), "pair": pair.short, "digest": digest}
    return unused_folder(settings.out, "train-predictor", dataset, defining)


def _dataset_of(trace: TraceFile) -> dict[str, Any]:
    return stated(trace.recording.dataset) or {"name": trace.path.stem}


def _finish(
    folder: Path,
    trace: TraceFile,
    pair: PairHashes,
    experiment: TrainingExperiment,
    repeats: Repeats,
    failed: int,
) -> TrainedPredictors:
    """Write numbers, plots, report and predictors; `failed` requests did not fit the context."""
    from specbench_kit.studies.training.plots import write_plots

    settings = experiment.settings
    run = _describe(trace, settings, failed)
    summary = summarise(experiment, repeats)
    training = {name: run[name] for name in ("dataset", "models", "trace", "config", "versions")}
    training["prompts"] = trace.recording.prompts
    disturbed = disturbances(read_machine(run.get("machine")))
    if disturbed:
        training |= {"disturbed": disturbed, "forced": settings.force}
    predictors = make_predictors(
        experiment, summary, pair, training, run["started_at"], DecisionCost.of(trace.header)
    )
    doubts = [] if settings.force else disturbed
    # Thresholds that were chosen by the time of a disturbed machine must not replace those of a
    # quiet one.
    saved = save_predictors(predictors, folder, settings, suffix="-disturbed" if doubts else "")
    write_plots(
        folder / "plots",
        summary,
        experiment.evaluation.judged(),
        run["dataset"].get("name", trace.path.stem),
    )
    return TrainedPredictors(finish(TRAINING, folder, run, summary), saved, doubts)


def _describe(trace: TraceFile, settings: PredictorTrainingSettings, failed: int) -> dict[str, Any]:
    """Return the content of `run.json`.

    `machine` are the readings of the machine while the steps were timed, if thresholds are chosen by these times.
    """
    machine = stated(trace.recording.machine) if settings.timed_here else []
    return {
        "command": "train-predictor",
        "dataset": _dataset_of(trace),
        "models": stated(trace.recording.models),
        "trace": stated(trace.describe()),
        "config": settings.described(),
        "requests": {"recorded": len(trace), "failed": failed},
        **describe_time(settings.deployment or recording_deployment(trace.header)),
        **provenance.collect(settings.argv),
        **({"machine": machine} if machine else {}),
    }


def repeat(
    experiment: TrainingExperiment, offsets: Offsets, count: int, report: CountCallback
) -> Repeats:
    """Return geometric means of speed ratios over `count` trainings, `experiment` among them, with
    95% intervals.

    Each training has its own split and seed and chooses family, rule, thresholds and lengths anew;
    hyper-parameters are those of the first search. A split is skipped if one of its parts lacks
    accepted or rejected tokens. The intervals account for prompts that the splits share (Nadeau and
    Bengio 2003).
    """
    ratios = [
        _speed_ratios(repeated) for repeated in _experiments(experiment, offsets, count, report)
    ]
    repeated = {}
    for name in ratios[0]:
        values = [ratio[name] for ratio in ratios]
        value, interval = interval_of_resplits(values, SHARES[-1])
        repeated[name] = RepeatedRatio(value, interval, values)
    return Repeats(len(ratios), **repeated)


def _experiments(
    experiment: TrainingExperiment, offsets: Offsets, count: int, report: CountCallback
) -> Iterator[TrainingExperiment]:
    yield experiment
    for number in range(1, count):
        seed = experiment.settings.seed + number
        split = split_by_prompt(offsets, seed)
        labels = [extract(part).labels for part in split.parts.values()]
        if all(part.any() and not part.all() for part in labels):
            settings = replace(experiment.settings, seed=seed)
            trained = {}
            for name, family in experiment.trained.items():
                training, validation = (
                    extract(part, family.names) for part in (split.training, split.validation)
                )
                params = family.search.best.params
                scorer = families.get(name)().fit(training, validation, params, seed)
                trained[name] = replace(
                    family, search=SearchResult(scorer, SearchTrial(params, 0.0), ())
                )
            yield replace(experiment, settings=settings, split=split, trained=trained, further=())
        report(number, count - 1)


def _speed_ratios(experiment: TrainingExperiment) -> dict[str, float]:
    """Return speed ratios on the test part between the methods that a user can choose from."""
    leaders = experiment.leaders
    test = experiment.split.test
    timing = experiment.timing
    contenders = {contender.name: contender for contender in experiment.contenders}

    def speed(name: str) -> float:
        contender = contenders[name]
        return timing.speed(test, contender.plan(test), contender.paid_s)

    wisp, confidence, fixed, oracle = map(
        speed, (leaders.rule, leaders.threshold, leaders.fixed, "oracle")
    )
    return {
        "wisp_over_fixed": wisp / fixed,
        "confidence_over_fixed": confidence / fixed,
        "wisp_over_confidence": wisp / confidence,
        "oracle_over_fixed": oracle / fixed,
    }


DECODING_METRICS = (
    "throughput",
    "acceptance_length",
    "acceptance_rate",
    "draft_efficiency",
    "gap_closed",
    "regret",
)
"""Metrics of a predictor's decoding that are saved with it."""


class DecisionCost(NamedTuple):
    """The seconds per decision without the score, 0 if the trace does not state them, and where
    they come from.
    """

    statistics_s: float
    origin: str

    @classmethod
    def of(cls, header: TraceHeader) -> "DecisionCost":
        """Return the cost on the machine that recorded the trace."""
        if not header.statistics_s:
            return cls(0.0, "")
        timed = recording_deployment(header).predictor_origin
        hardware = header.recording.hardware
        cpu = (hardware and hardware.cpu) or "some machine"
        return cls(header.statistics_s, f"{timed} on {cpu}, and a score timed alone")

    def decision_s(self, trained: TrainedFamily) -> float:
        """Return the cost of a classifier's decision with its score."""
        return self.statistics_s + trained.latency["median"] if self.statistics_s else 0.0


def make_predictors(
    experiment: TrainingExperiment,
    summary: TrainingSummary,
    pair: PairHashes,
    provenance: Mapping[str, object],
    created: str,
    cost: DecisionCost,
) -> dict[str, Predictor]:
    """Return a predictor per family; `provenance` describes the source of the examples, `created`
    is a date.
    """
    judges = {
        contender.name: contender.judge
        for contender in experiment.contenders
        if contender.judge and contender.kind == "classifier"
    }
    predictors = {}
    for family, trained in experiment.trained.items():
        decoding = structs.asdict(summary.decoding[family])
        predictors[family] = Predictor(
            family=family,
            scorer=trained.search.scorer,
            features=trained.names,
            threshold=judges[family].threshold,
            max_draft=judges[family].longest,
            operating_rule=summary.operating_point,
            pair=pair,
            decision_s=cost.decision_s(trained),
            decision_origin=cost.origin,
            tuned=tuple(
                threshold
                for tuning in experiment.tunings
                for threshold in tuning.thresholds(family)
            ),
            training={
                **provenance,
                "split": to_builtins(summary.split),
                **to_builtins(summary.families[family]),
            },
            metrics={
                "on": "test prompts, replayed with modelled time",
                "classification": to_builtins(summary.classification[family]),
                "decoding": {name: to_builtins(decoding[name]) for name in DECODING_METRICS},
            },
            recommended=family == summary.recommended,
            created=created,
        )
    return predictors


def save_predictors(
    predictors: Mapping[str, Predictor],
    folder: Path,
    settings: PredictorTrainingSettings,
    suffix: str = "",
) -> dict[str, Path]:
    """Save all predictors to the run's folder and to the folders that the settings name.

    Return the latter folders by family; among the user's predictors their names end with `suffix`.
    """
    for family, predictor in predictors.items():
        artefact.save(folder / "predictors" / family, predictor)
    folders: dict[str, Path] = {}
    for family, predictor in predictors.items():
        if settings.save_to is not None:
            if not predictor.recommended:
                continue
            folders[family] = settings.save_to
        elif settings.name is not None:
            folders[family] = library.data_folder() / f"{settings.name}-{family}{suffix}"
        else:
            default = library.default_folder(predictor.pair, family)
            folders[family] = default.with_name(f"{default.name}{suffix}")
        artefact.save(folders[family], predictor)
    return folders


def summarise(experiment: TrainingExperiment, repeats: Repeats) -> TrainingSummary:
    """Return the content of `summary.json`."""
    evaluation = experiment.evaluation
    leaders = experiment.leaders
    training = extract(experiment.split.training)
    test = experiment.split.test
    calibrations = {}
    for name in experiment.trained:
        bins = calibration(*labels_and_scores(test, evaluation.played[name].contender))
        calibrations[name] = CalibrationBins(
            bins.mean_score.tolist(), bins.accepted_share.tolist(), bins.count.tolist()
        )
    return TrainingSummary(
        recommended=leaders.classifier,
        leaders=leaders,
        operating_point=str(experiment.settings.point),
        rule=experiment.settings.point.sentence,
        max_draft=test.max_draft,
        split=describe_split(experiment.split),
        timing=experiment.timing,
        families={
            name: _describe_family(trained, experiment)
            for name, trained in experiment.trained.items()
        },
        contenders=[
            _describe_contender(contender, experiment) for contender in experiment.contenders
        ],
        decoding=evaluation.decoding(),
        classification=evaluation.classification(),
        calibration=calibrations,
        theorem_1=evaluation.theorem(),
        choices=evaluation.choices(),
        sites=[tuning.worth(leaders.classifier, test) for tuning in experiment.tunings],
        classifier_over_feature=evaluation.speed_ratio(leaders.classifier, leaders.feature),
        attribution=evaluation.attribution(),
        acceptance_by_feature=acceptance_curves(training),
        correlations=correlations(training),
        repeats=repeats,
    )


def _describe_family(trained: TrainedFamily, experiment: TrainingExperiment) -> FamilySummary:
    search = trained.search
    return FamilySummary(
        features=list(trained.names),
        params=dict(search.best.params),
        validation_loss=search.best.loss,
        default_loss=search.trials[0].loss,
        trials=len(search.trials),
        grid=prod(map(len, experiment.settings.space_of(trained.family).values())),
        latency=dict(trained.latency),
    )


def _describe_contender(contender: Contender, experiment: TrainingExperiment) -> ContenderSummary:
    judge = contender.judge
    return ContenderSummary(
        name=contender.name,
        kind=contender.kind,
        policy_s=contender.policy_s,
        threshold=judge.threshold if judge else None,
        longest=judge.longest if judge else None,
        validation_throughput=experiment.tuner.speed(contender),
    )
