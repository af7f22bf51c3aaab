"""Random search over a family's hyper-parameters, whose space may be given as text:
`mlp.batch_size=32,64,128`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.latency import stopwatch


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a search in trials and seconds: the first that is reached ends it, after at
    least one trial.

    Only a budget without seconds gives the same result on every machine.
    """

    trials: int = 12
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.trials < 1 or (self.seconds is not None and not self.seconds > 0):
            raise SkitError("a search needs at least one trial, and more than 0 seconds")


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """The hyper-parameters of one fit and its log-loss on the validation examples, in nats."""

    params: Params
    loss: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The scorer of the best trial, that trial, and all trials in order."""

    scorer: Scorer
    best: SearchTrial
    trials: tuple[SearchTrial, ...]


TrialCallback = Callable[[int, int, SearchTrial], None]
"""Called after each trial as `(done, planned, trial)`."""


def search(
    family: PredictorFamily,
    train: Examples,
    valid: Examples,
    budget: Budget | None = None,
    seed: int = 0,
    progress: TrialCallback | None = None,
    space: Space | None = None,
) -> SearchResult:
    """Fit the family's defaults and random draws from a space; return the trial with the least
    validation log-loss.

    `space` is the family's own unless given. The criterion is log-loss because thresholds are set on probabilities:
    it rewards calibration as well as order.
    """
    budget = budget or Budget()
    elapsed_s = stopwatch()
    trials = list[SearchTrial]()
    best = None
    plan = list(_draws(family, space or family.space, budget.trials, seed))
    for params in plan:
        scorer = family.fit(train, valid, params, seed)
        trials.append(SearchTrial(params, log_loss(valid, scorer)))
        if best is None or trials[-1].loss < best[1].loss:
            best = scorer, trials[-1]
        if progress:
            progress(len(trials), len(plan), trials[-1])
        if budget.seconds is not None and elapsed_s() >= budget.seconds:
            break
    assert best is not None
    return SearchResult(*best, tuple(trials))


def log_loss(examples: Examples, scorer: Scorer) -> float:
    """Return the mean negative log-likelihood of the labels, in nats."""
    from sklearn import metrics

    scores = scorer.score_many(examples.features)
    return float(metrics.log_loss(examples.labels, scores, labels=[False, True]))


def _draws(family: PredictorFamily, space: Space, count: int, seed: int) -> Iterator[Params]:
    """Yield the defaults, then distinct points of the grid in random order; `count` in all."""
    from sklearn.model_selection import ParameterGrid, ParameterSampler

    grid = {name: list(values) for name, values in space.items()}
    yield family.defaults
    draws = ParameterSampler(grid, min(count, len(ParameterGrid(grid))), random_state=seed)
    yield from [params for params in draws if params != family.defaults][: count - 1]


FORM = "write FAMILY.PARAMETER=VALUE,VALUE, as in mlp.batch_size=32,64,128"


def changed_spaces(texts: Sequence[str]) -> dict[str, Space]:
    """Return the changed values by family and hyper-parameter, each of the same type as the
    family's own.

    Raise SkitError if a text has another form or names an unknown family, hyper-parameter or value.
    """
    spaces: dict[str, dict[str, tuple[object, ...]]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        family, _, parameter = name.partition(".")
        if not values or not parameter:
            raise SkitError(f"--space {text}: {FORM}")
        space = families.get(family).space
        if parameter not in space:
            raise SkitError(f"--space {text}: {family} has {', '.join(space)}")
        default = space[parameter][0]
        parsed = tuple(_parse_like(default, value, text) for value in values.split(","))
        spaces.setdefault(family, {})[parameter] = parsed
    return {**spaces}


def _parse_like(default: object, value: str, text: str) -> object:
    kind: type = type(default)
    try:
        return {"true": True, "false": False}[value] if kind is bool else kind(value)
    except (KeyError, ValueError):
        raise SkitError(
            f"--space {text}: '{value}' is no value like {str(default).lower()}"
        ) from None
