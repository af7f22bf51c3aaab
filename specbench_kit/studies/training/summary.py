"""The numbers of an experiment, ready for JSON."""

from dataclasses import asdict
from math import prod
from typing import Any

from specbench_kit.predictors.scoring import calibration
from specbench_kit.studies.training.contenders import Contender, TrainedFamily
from specbench_kit.studies.training.description import acceptance_curves, correlations, describe_split
from specbench_kit.studies.training.evaluation import labels_and_scores
from specbench_kit.studies.training.examples import extract
from specbench_kit.studies.training.experiment import TrainingExperiment

CALIBRATION_FIELDS = ("mean_score", "accepted_share", "count")


def summarise(experiment: TrainingExperiment) -> dict[str, Any]:
    """Return the content of `summary.json`; every number is on the test prompts unless its key says otherwise."""
    evaluation, leaders = experiment.evaluation, experiment.leaders
    training, test = extract(experiment.split.training), experiment.split.test
    calibrations = {}
    for name in experiment.trained:
        bins = calibration(*labels_and_scores(test, evaluation.played[name].contender))
        calibrations[name] = {field: getattr(bins, field).tolist() for field in CALIBRATION_FIELDS}
    return {
        "recommended": leaders.classifier,
        "leaders": asdict(leaders),
        "operating_point": str(experiment.settings.point),
        "rule": experiment.settings.point.sentence,
        "max_draft": test.max_draft,
        "split": describe_split(experiment.split),
        "timing": asdict(experiment.timing),
        "families": {name: _describe_family(trained, experiment) for name, trained in experiment.trained.items()},
        "contenders": [_describe_contender(contender, experiment) for contender in experiment.contenders],
        "decoding": evaluation.decoding(),
        "classification": evaluation.classification(),
        "calibration": calibrations,
        "theorem_1": evaluation.theorem(),
        "choices": evaluation.choices(),
        "sites": [tuning.worth(leaders.classifier, test) for tuning in experiment.tunings],
        "classifier_over_feature": evaluation.speed_ratio(leaders.classifier, leaders.feature),
        "attribution": evaluation.attribution(),
        "acceptance_by_feature": acceptance_curves(training),
        "correlations": correlations(training),
    }


def _describe_family(trained: TrainedFamily, experiment: TrainingExperiment) -> dict[str, object]:
    search = trained.search
    return {
        "features": list(trained.names),
        "params": dict(search.best.params),
        "validation_loss": search.best.loss,
        "default_loss": search.trials[0].loss,
        "trials": len(search.trials),
        "grid": prod(map(len, experiment.settings.space_of(trained.family).values())),
        "latency": dict(trained.latency),
    }


def _describe_contender(contender: Contender, experiment: TrainingExperiment) -> dict[str, object]:
    judge = contender.judge
    return {
        "name": contender.name,
        "kind": contender.kind,
        "policy_s": contender.policy_s,
        "threshold": judge.threshold if judge else None,
        "longest": judge.longest if judge else None,
        "validation_throughput": experiment.tuner.speed(contender),
    }
