"""Random search over a family's hyper-parameters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space
from specbench_kit.predictors.latency import stopwatch


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to try: whichever of trials and seconds is used up first ends the search, after one trial at least.

    Only a budget without seconds gives the same result on every machine.
    """

    trials: int = 12
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.trials < 1 or (self.seconds is not None and not self.seconds > 0):
            raise SkitError("a search needs at least one trial, and more than 0 seconds")


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """One fit; `loss` is its log-loss on the validation examples, in nats."""

    params: Params
    loss: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The scorer of the best trial, and every trial in the order tried."""

    scorer: Scorer
    best: SearchTrial
    trials: tuple[SearchTrial, ...]


Progress = Callable[[int, int, SearchTrial], None]
"""Called after each trial with the trials done, the trials planned and the trial itself."""


def search(
    family: PredictorFamily,
    train: Examples,
    valid: Examples,
    budget: Budget | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    space: Space | None = None,
) -> SearchResult:
    """Fit the family's defaults and random draws from its space, or another; keep the least validation log-loss.

    Log-loss, because operating points are set on probabilities: it rewards calibration as well as order.
    """
    budget = budget or Budget()
    elapsed_s, trials, kept = stopwatch(), [], None
    plan = list(_draws(family, space or family.space, budget.trials, seed))
    for params in plan:
        scorer = family.fit(train, valid, params, seed)
        trials.append(SearchTrial(params, log_loss(valid, scorer)))
        if kept is None or trials[-1].loss < kept[1].loss:
            kept = scorer, trials[-1]
        if progress:
            progress(len(trials), len(plan), trials[-1])
        if budget.seconds is not None and elapsed_s() >= budget.seconds:
            break
    assert kept is not None
    return SearchResult(*kept, tuple(trials))


def log_loss(examples: Examples, scorer: Scorer) -> float:
    """Mean negative log-likelihood of the labels, in nats."""
    from sklearn import metrics

    scores = scorer.score_many(examples.features)
    return float(metrics.log_loss(examples.labels, scores, labels=[False, True]))


def _draws(family: PredictorFamily, space: Space, count: int, seed: int) -> Iterator[Params]:
    """The defaults, then distinct points of the family's grid in random order."""
    from sklearn.model_selection import ParameterGrid, ParameterSampler

    grid = {name: list(values) for name, values in space.items()}
    yield family.defaults
    draws = ParameterSampler(grid, min(count, len(ParameterGrid(grid))), random_state=seed)
    others = [params for params in draws if params != family.defaults]
    yield from others[: count - 1]
