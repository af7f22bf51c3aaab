"""specpipe: which nodes make the next level, and what its options do."""

from math import log

import pytest
import torch
from tiny_models import clear_prompts, decode, disturbed, make_requests, make_runner, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Child, Pipeline, StepBudget
from specbench_kit.methods.spec import parse_method

PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.05, 0.9, 0.05, 0.0]])
SCORES = [log(0.2), log(0.8)]


def next_level(spec: str, room: int = 100) -> list[tuple[int, int, float]]:
    children = parse_method(spec).policy().next_level(PROBABILITIES, SCORES, room)
    assert all(isinstance(child, Child) for child in children)
    return [(child.parent, child.token, pytest.approx(child.score)) for child in children]


def test_the_likeliest_nodes_from_the_root_on_make_the_next_level() -> None:
    assert next_level("specpipe:width=3") == [
        (1, 1, log(0.72)),
        (0, 0, log(0.1)),
        (0, 1, log(0.06)),
    ]


def test_each_node_offers_its_likeliest_children() -> None:
    assert next_level("specpipe:children=1") == [(1, 1, log(0.72)), (0, 0, log(0.1))]


def test_a_level_keeps_to_the_room_and_holds_nothing_impossible() -> None:
    assert next_level("specpipe", room=1) == [(1, 1, log(0.72))]
    assert {(parent, token) for parent, token, _ in next_level("specpipe")} == {
        (parent, token) for parent in range(2) for token in range(3)
    }


def test_its_pipeline_holds_a_level_per_stage_and_one_that_waits() -> None:
    assert parse_method("specpipe").pipeline == Pipeline(
        stages=8, width=64, budget=StepBudget(64, prefill="mixed")
    )
    assert parse_method("specpipe:stages=3,width=5").pipeline == (
        3,
        5,
        StepBudget(64, prefill="mixed"),
    )
    assert Pipeline(3, 5).nodes == 20
    assert parse_method("specinfer").pipeline is None


@pytest.mark.parametrize("option", ["stages", "width", "children", "rows", "chunk"])
def test_options_are_at_least_one(option: str) -> None:
    with pytest.raises(SkitError, match=f"specpipe: {option} must be at least 1, not 0"):
        parse_method(f"specpipe:{option}=0")


def test_a_level_that_no_step_can_take_is_refused() -> None:
    with pytest.raises(SkitError, match="width=64 is more than a step's rows=8: give rows=64"):
        parse_method("specpipe:rows=8")
    assert parse_method("specpipe:rows=8,budget=request").pipeline == (
        8,
        64,
        StepBudget(prefill="mixed"),
    )


def hit_rate(records: dict[str, RequestRecord]) -> float:
    rounds = [step for record in records.values() for step in record.rounds]
    return sum(step.accepted for step in rounds) / sum(step.committed for step in rounds)


def test_wider_levels_hold_the_true_token_more_often() -> None:
    target: PreTrainedModel = tiny_llama(0)
    runners = make_runner(target, 1, 256), make_runner(disturbed(target, 0.02), 1, 256)
    requests = make_requests(clear_prompts(target, [9, 20, 33], 40), 40)
    rates = [
        hit_rate(decode(parse_method(f"specpipe:stages=4,width={n}"), runners, requests))
        for n in (1, 4, 16)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.1
