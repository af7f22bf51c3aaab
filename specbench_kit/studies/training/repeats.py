"""The same training on other splits with other seeds: how much of its worth is luck."""

from collections.abc import Iterator
from dataclasses import replace

from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.statistics import interval_of_resplits
from specbench_kit.predictors.base import families
from specbench_kit.predictors.search import SearchResult, SearchTrial
from specbench_kit.studies.training.examples import SHARES, extract, split_by_prompt
from specbench_kit.studies.training.experiment import TrainingExperiment
from specbench_kit.studies.training.offsets import Offsets


def repeat(experiment: TrainingExperiment, offsets: Offsets, count: int, report: CountCallback) -> dict[str, object]:
    """Return geometric means of speed ratios over `count` trainings, `experiment` among them, with 95% intervals.

    Each training has its own split and seed and chooses family, rule, thresholds and lengths anew; hyper-parameters
    are those of the first search. A split is skipped if one of its parts lacks accepted or rejected tokens. The
    intervals account for prompts that the splits share (Nadeau and Bengio 2003).
    """
    ratios = [_speed_ratios(repeated) for repeated in _experiments(experiment, offsets, count, report)]
    result: dict[str, object] = {"count": len(ratios)}
    for name in ratios[0]:
        values = [ratio[name] for ratio in ratios]
        result[name] = interval_of_resplits(values, SHARES[-1]) | {"values": values}
    return result


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
                training, validation = (extract(part, family.names) for part in (split.training, split.validation))
                params = family.search.best.params
                scorer = families.get(name)().fit(training, validation, params, seed)
                trained[name] = replace(family, search=SearchResult(scorer, SearchTrial(params, 0.0), ()))
            yield replace(experiment, settings=settings, split=split, trained=trained, further=())
        report(number, count - 1)


def _speed_ratios(experiment: TrainingExperiment) -> dict[str, float]:
    """Return speed ratios on the test part between the methods that a user can choose from."""
    leaders, test, timing = experiment.leaders, experiment.split.test, experiment.timing
    contenders = {contender.name: contender for contender in experiment.contenders}

    def speed(name: str) -> float:
        contender = contenders[name]
        return timing.speed(test, contender.plan(test), contender.paid_s)

    wisp, confidence, fixed, oracle = map(speed, (leaders.rule, leaders.threshold, leaders.fixed, "oracle"))
    return {
        "wisp_over_fixed": wisp / fixed,
        "confidence_over_fixed": confidence / fixed,
        "wisp_over_confidence": wisp / confidence,
        "oracle_over_fixed": oracle / fixed,
    }
