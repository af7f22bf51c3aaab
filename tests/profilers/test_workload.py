"""The configurations that profiles are measured on."""

from collections import Counter

from specbench_kit.decoding.latency import logit_rows_of
from specbench_kit.profilers.workload import Configuration, steps, verification, wide


def test_the_workload_has_wisps_173_configurations() -> None:
    plan = verification()
    assert Counter(configuration.part for configuration in plan) == {"train": 123, "test": 50}
    assert len({configuration.name for configuration in plan}) == 173
    grid = [
        configuration
        for configuration in plan
        if configuration.part == "train" and "train" not in configuration.name
    ]
    assert Counter(configuration.regime for configuration in grid) == {
        "compute-bound": 25,
        "memory-bound": 48,
    }
    drawn = Counter(
        configuration.regime for configuration in plan if configuration.name.startswith("train")
    )
    assert drawn == {"compute-bound": 15, "memory-bound": 15, "mixed": 20}


def test_regimes_are_what_they_are_called() -> None:
    for configuration in verification():
        new, cached = sum(n for n, _ in configuration.rows), sum(c for _, c in configuration.rows)
        if configuration.regime == "compute-bound":
            assert cached == 0
            assert 1200 <= new <= 2000
        else:
            assert cached > new or configuration.regime == "mixed"
        if configuration.regime == "memory-bound":
            assert all(500 <= n + c <= 2000 and n <= 100 for n, c in configuration.rows)
        assert configuration.longest <= 2000


def test_splits_add_up() -> None:
    rows = {configuration.name: configuration.rows for configuration in verification()}
    assert rows["compute-single-1200"] == ((1200, 0),)
    assert rows["compute-split-4-1800"] == ((450, 0),) * 4
    assert sum(new for new, _ in rows["compute-varied-3-1400"]) == 1400
    assert rows["memory-20-of-1500-x4"] == ((20, 1480),) * 4


def test_seeds_draw_other_test_configurations_but_the_same_grid() -> None:
    first, second = verification(0), verification(1)
    assert first[:73] == second[:73]
    assert first[73:] != second[73:]
    assert verification(0) == first


def test_scaling_keeps_at_least_a_token_and_what_was_empty() -> None:
    configuration = Configuration("x", "train", "mixed", ((100, 0), (1, 1999), (4, 10)))
    assert configuration.scaled(1 / 8).rows == ((12, 0), (1, 250), (1, 1))
    step = Configuration("x", "train", "step", ((9, 512),))
    assert step.scaled(1 / 8).rows == ((9, 64),)


def test_prompts_need_one_logit_and_verifications_all() -> None:
    assert (logit_rows_of((700, 0)), logit_rows_of((9, 500))) == (1, 9)


def test_steps_cover_contexts_and_batches() -> None:
    plan = steps((1, 5))
    train = [configuration for configuration in plan if configuration.part == "train"]
    assert len(train) == 2 * 5 * 4
    assert {configuration.rows[0][0] for configuration in plan} == {1, 5}
    assert {len(configuration.rows) for configuration in train} == {1, 2, 4, 8}


def test_wide_batches_go_up_to_128_requests_and_bring_a_row_of_logits_each() -> None:
    assert (
        max(len(configuration.rows) for configuration in wide() if configuration.part == "train")
        == 128
    )
    assert {new for configuration in wide() for new, _ in configuration.rows} == {1}
    assert {configuration.regime for configuration in wide()} == {"batched"}
