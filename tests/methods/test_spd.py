"""spd: one token per step, and what a wrong one costs."""

from math import log

import pytest
import torch
from tiny_models import clear_prompts, decode, disturbed, make_requests, make_runner, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method

TOKENS = 24


def test_a_level_is_the_likeliest_token_below_the_last_one() -> None:
    policy = parse_method("spd").policy()
    probabilities = torch.tensor([[0.2, 0.7, 0.1]])
    ((parent, token, score),) = policy.next_level(probabilities, [log(0.5)], room=1)
    assert (parent, token, score) == (0, 1, pytest.approx(log(0.35)))
    assert policy.next_level(probabilities, [log(0.5)], room=0) == []


def test_its_pipeline_takes_one_token_per_step() -> None:
    assert parse_method("spd").pipeline == (4, 1, parse_method("spd").pipeline.budget)
    assert parse_method("spd:stages=8").pipeline.nodes == 9
    with pytest.raises(SkitError, match="spd: stages must be at least 1, not 0"):
        parse_method("spd:stages=0")


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(("noise", "rounds"), [(0.0, 1), (0.02, 17), (1.0, TOKENS)])
def test_a_wrong_token_empties_the_pipeline(stages: int, noise: float, rounds: int) -> None:
    """The first token after a wrong one fills all stages, and each further one that is right takes a step."""
    target = tiny_llama(0)
    runners = make_runner(target, 1, 256), make_runner(disturbed(target, noise), 1, 256)
    requests = make_requests(clear_prompts(target, [9], TOKENS), TOKENS)
    (record,) = decode(parse_method(f"spd:stages={stages}"), runners, requests).values()
    assert [step.steps for step in record.rounds] == [
        stages + step.committed - 1 for step in record.rounds
    ]
    assert sum(step.committed for step in record.rounds) == TOKENS
    # A pipeline of one stage has nothing in flight that could be right.
    assert len(record.rounds) == (TOKENS if stages == 1 else rounds)


def test_it_takes_the_steps_of_a_tree_of_width_one() -> None:
    target = tiny_llama(0)
    runners = make_runner(target, 2, 256), make_runner(disturbed(target, 0.02), 2, 256)
    requests = make_requests(clear_prompts(target, [9, 20], TOKENS), TOKENS)
    chain, tree = (
        decode(parse_method(spec), runners, requests)
        for spec in ("spd", "specpipe:stages=4,width=1,children=1,budget=request,prefill=first")
    )
    steps = [
        [[(step.accepted, step.steps) for step in record.rounds] for record in records.values()]
        for records in (chain, tree)
    ]
    assert steps[0] == steps[1]
