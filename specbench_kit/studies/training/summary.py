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

Fields = dict[str, Any]


def summarise(experiment: TrainingExperiment) -> Fields:
    """The content of `summary.json`; every number is on the test prompts unless its key says otherwise."""
    evaluation, leaders = experiment.evaluation, experiment.leaders
    training = extract(experiment.split.training)
    return {
        "recommended": leaders.classifier,
        "leaders": asdict(leaders),
        "operating_point": str(experiment.settings.point),
        "rule": experiment.settings.point.sentence,
        "max_draft": experiment.split.test.max_draft,
        "split": describe_split(experiment.split),
        "timing": asdict(experiment.timing),
        "families": {name: _trained(trained, experiment) for name, trained in experiment.trained.items()},
        "contenders": [_contender(one, experiment) for one in experiment.contenders],
        "decoding": evaluation.decoding(),
        "classification": evaluation.classification(),
        "calibration": {name: _calibration(name, experiment) for name in experiment.trained},
        "theorem_1": evaluation.theorem(),
        "choices": evaluation.choices(),
        "sites": [site.worth(leaders.classifier, experiment.split.test) for site in experiment.sites],
        "classifier_over_feature": evaluation.speed_ratio(leaders.classifier, leaders.feature),
        "attribution": evaluation.attribution(),
        "acceptance_by_feature": acceptance_curves(training),
        "correlations": correlations(training),
    }


def _trained(trained: TrainedFamily, experiment: TrainingExperiment) -> Fields:
    found = trained.found
    return {
        "features": list(trained.names),
        "params": dict(found.best.params),
        "validation_loss": found.best.loss,
        "default_loss": found.trials[0].loss,
        "trials": len(found.trials),
        "grid": prod(map(len, experiment.settings.space_of(trained.family).values())),
        "latency": dict(trained.latency),
    }


def _contender(one: Contender, experiment: TrainingExperiment) -> Fields:
    return {
        "name": one.name,
        "kind": one.kind,
        "policy_s": one.policy_s,
        "threshold": one.judge.threshold if one.judge else None,
        "longest": one.judge.longest if one.judge else None,
        "validation_throughput": experiment.chooser.speed(one),
    }


def _calibration(name: str, experiment: TrainingExperiment) -> Fields:
    bins = calibration(*labels_and_scores(experiment.split.test, experiment.evaluation.played[name].contender))
    return {field: getattr(bins, field).tolist() for field in ("mean_score", "accepted_share", "count")}
