import pytest
from predictor_examples import synthetic

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import (
    Budget,
    SearchResult,
    SearchTrial,
    changed_spaces,
    log_loss,
    search,
)

TRAIN, VALID = synthetic(600, seed=1), synthetic(300, seed=2)


def run(name: str, budget: Budget | None = None, seed: int = 0) -> SearchResult:
    return search(families.get(name)(), TRAIN, VALID, budget, seed)


def test_the_first_trial_is_the_defaults_and_the_best_has_the_least_loss() -> None:
    result = run("lightgbm", Budget(trials=6))
    assert [len(result.trials), result.trials[0].params] == [6, families.get("lightgbm")().defaults]
    assert result.best.loss == min(trial.loss for trial in result.trials)
    assert log_loss(VALID, result.scorer) == result.best.loss


def test_one_seed_tries_and_finds_the_same() -> None:
    first, again, other_seed = (
        run("xgboost", Budget(5), 7),
        run("xgboost", Budget(5), 7),
        run("xgboost", Budget(5), 8),
    )
    assert first.trials == again.trials
    assert [trial.params for trial in first.trials[1:]] != [
        trial.params for trial in other_seed.trials[1:]
    ]


def test_no_point_is_tried_twice_and_a_small_grid_ends_the_search() -> None:
    result = run("logistic", Budget(trials=50))
    tried = [trial.params["C"] for trial in result.trials]
    assert sorted(tried) == sorted(families.get("logistic").space["C"])


def test_every_trial_lies_in_the_space() -> None:
    space = families.get("xgboost").space
    for trial in run("xgboost", Budget(trials=8)).trials:
        assert all(value in space[name] for name, value in trial.params.items())


def test_a_space_of_ones_own_is_drawn_from() -> None:
    space = {**families.get("logistic").space, **changed_spaces(["logistic.C=0.3,3"])["logistic"]}
    result = search(families.get("logistic")(), TRAIN, VALID, Budget(9), space=space)
    assert {trial.params["C"] for trial in result.trials[1:]} == {0.3, 3.0}
    assert changed_spaces(["mlp.batch_norm=true", "mlp.batch_size=32,64"])["mlp"] == {
        "batch_norm": (True,),
        "batch_size": (32, 64),
    }
    for text, problem in (
        ("mlp.depth=3", "mlp has hidden"),
        ("mlp", "write FAMILY"),
        ("mlp.dropout=x", "'x' is no"),
    ):
        with pytest.raises(SkitError, match=problem):
            changed_spaces([text])


def test_used_up_seconds_end_the_search_after_the_trial_at_hand() -> None:
    assert len(run("logistic", Budget(trials=10, seconds=1e-9)).trials) == 1


def test_progress_is_told_of_each_trial() -> None:
    reports: list[tuple[int, int, SearchTrial]] = []
    result = search(
        families.get("logistic")(), TRAIN, VALID, Budget(3), 0, lambda *step: reports.append(step)
    )
    assert [(done, planned) for done, planned, _ in reports] == [(1, 3), (2, 3), (3, 3)]
    assert tuple(trial for _, _, trial in reports) == result.trials


def test_an_empty_budget_is_refused() -> None:
    for trials, seconds in ((0, None), (3, 0.0), (3, float("nan"))):
        with pytest.raises(SkitError, match="at least one trial"):
            Budget(trials, seconds)


def test_latency_is_summed_up_in_order() -> None:
    seconds = time_scores(run("logistic", Budget(1)).scorer, VALID.features[:7].tolist(), trials=50)
    assert set(seconds) == {"mean", "median", "std", "min", "max", "p95", "p99"}
    order = [seconds[name] for name in ("min", "median", "p95", "p99", "max")]
    assert order == sorted(order)
    assert seconds["min"] > 0
