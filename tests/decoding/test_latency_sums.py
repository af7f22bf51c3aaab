"""Latency models as functions of a batch's sums."""

from random import Random

import pytest

from specbench_kit.decoding.latency import (
    NOTHING,
    BatchSums,
    ContextModel,
    InteractionModel,
    LatencyModel,
    Row,
    TableModel,
    sums_of,
)
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, find_software

INTERACTIONS = InteractionModel(a_s=33.14e-6, b_compute_s=34.5e-9, b_read_s=4.62e-6, c_s=14.86e-3)
CONTEXT = ContextModel(alpha_s=2e-7, gamma_s=4e-4, delta_s=8e-3)
LIMIT = Roofline(find_device("a100"), bundled_architectures()["qwen3-32b"], "bfloat16")
ROOFLINE = LIMIT.estimate(find_software(KERNELS))
ROWS: list[Row] = [(3, 10), (1, 7), (20, 0)]


def row_by_row(model: InteractionModel | ContextModel, rows: list[Row]) -> float:
    """The formula as the papers write it: a sum over requests."""
    if isinstance(model, InteractionModel):
        parts = [
            model.a_s * n + model.b_compute_s * (n * (c + n)) + model.b_read_s * c for n, c in rows
        ]
        return model.c_s + sum(parts)
    return model.delta_s + sum(
        model.alpha_s * (n * c + n * (n - 1) / 2) + model.gamma_s * n for n, c in rows
    )


def test_the_sums_of_a_batch_by_hand() -> None:
    """3 after 10, 1 after 7, a prompt of 20: of a prompt one row of logits is wanted."""
    assert sums_of(ROWS) == BatchSums(
        linear=24,
        interactions=3 * 13 + 8 + 400,
        pairs=30 + 3 + 7 + 190,
        cached=17,
        logit_rows=5,
        requests=3,
        longest=20,
    )
    assert sums_of([]) == NOTHING


@pytest.mark.parametrize("model", [INTERACTIONS, CONTEXT])
def test_one_request_takes_what_the_formula_says_to_the_last_bit(
    model: InteractionModel | ContextModel,
) -> None:
    random = Random(1)
    for _ in range(300):
        row = random.randint(1, 2000), random.randint(0, 4000)
        assert model.seconds([row]) == row_by_row(model, [row])


@pytest.mark.parametrize("model", [INTERACTIONS, CONTEXT])
def test_a_batch_takes_what_its_rows_add_up_to(model: InteractionModel | ContextModel) -> None:
    random = Random(2)
    rows = [(random.randint(1, 9), random.randint(0, 4000)) for _ in range(64)]
    assert model.seconds(rows) == pytest.approx(row_by_row(model, rows), rel=1e-13)


@pytest.mark.parametrize("model", [INTERACTIONS, CONTEXT, ROOFLINE, TableModel((0.1, 0.2, 0.4))])
def test_a_model_that_calls_itself_additive_is(model: LatencyModel) -> None:
    alone_s = [model.seconds([row]) - model.of_sums(NOTHING) for row in ROWS]
    adds_up = model.seconds(ROWS) == pytest.approx(model.of_sums(NOTHING) + sum(alone_s))
    assert adds_up == model.additive


def test_a_table_goes_by_the_longest() -> None:
    table = TableModel((0.1, 0.2, 0.4))
    assert [table.seconds(rows) for rows in ([(1, 9)], [(1, 9), (2, 0)], ROWS)] == [0.1, 0.2, 0.4]
