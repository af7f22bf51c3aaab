"""The same training on other splits, with other seeds: how much of its worth is luck."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.statistics import interval_of_resplits
from specbench_kit.predictors.base import families
from specbench_kit.predictors.search import SearchResult, SearchTrial
from specbench_kit.studies.training.contenders import Contender, TrainedFamily
from specbench_kit.studies.training.examples import SHARES, Split, extract, split_by_prompt
from specbench_kit.studies.training.experiment import TrainingExperiment
from specbench_kit.studies.training.offsets import Offsets

Fields = dict[str, Any]


def repeat(experiment: TrainingExperiment, offsets: Offsets, count: int, report: CountCallback) -> Fields:
    """Geometric means of speed ratios over `count` trainings, the one at hand among them, with 95% intervals.

    Each has a split and a training seed of its own and chooses family, rule, thresholds and lengths anew; hyper-
    parameters are those that the search has found. A split that leaves a part without both kinds of tokens is passed
    over. Intervals: Nadeau and Bengio 2003, since the splits share prompts.
    """
    ratios = [_ratios(one) for one in _experiments(experiment, offsets, count, report)]
    found = {name: [one[name] for one in ratios] for name in ratios[0]}
    return {
        "count": len(ratios),
        **{name: interval_of_resplits(values, SHARES[-1]) | {"values": values} for name, values in found.items()},
    }


def _experiments(
    experiment: TrainingExperiment, offsets: Offsets, count: int, report: CountCallback
) -> Iterator[TrainingExperiment]:
    yield experiment
    for number in range(1, count):
        seed = experiment.settings.seed + number
        split = split_by_prompt(offsets, seed)
        if _has_both(split):
            yield _trained_anew(experiment, split, seed)
        report(number, count - 1)


def _has_both(split: Split) -> bool:
    labels = [extract(part).labels for part in split.parts.values()]
    return all(part.any() and not part.all() for part in labels)


def _trained_anew(experiment: TrainingExperiment, split: Split, seed: int) -> TrainingExperiment:
    trained = {name: _refit(one, split, seed) for name, one in experiment.trained.items()}
    return replace(
        experiment, settings=replace(experiment.settings, seed=seed), split=split, trained=trained, elsewhere=()
    )


def _refit(trained: TrainedFamily, split: Split, seed: int) -> TrainedFamily:
    train, valid = (extract(part, trained.names) for part in (split.training, split.validation))
    params = trained.found.best.params
    scorer = families.get(trained.family)().fit(train, valid, params, seed)
    return replace(trained, found=SearchResult(scorer, SearchTrial(params, 0.0), ()))


def _ratios(experiment: TrainingExperiment) -> dict[str, float]:
    """Of speeds on the test part, between those that a user has to choose from."""
    leaders, test, timing = experiment.leaders, experiment.split.test, experiment.timing
    by_name: dict[str, Contender] = {one.name: one for one in experiment.contenders}

    def speed(name: str) -> float:
        contender = by_name[name]
        return timing.speed(test, contender.plan(test), contender.paid_s)

    wisp, confidence, fixed, oracle = map(speed, (leaders.rule, leaders.threshold, leaders.fixed, "oracle"))
    return {
        "wisp_over_fixed": wisp / fixed,
        "confidence_over_fixed": confidence / fixed,
        "wisp_over_confidence": wisp / confidence,
        "oracle_over_fixed": oracle / fixed,
    }
