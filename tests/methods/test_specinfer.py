"""A tree of the same shape in every round."""

import pytest
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.errors import SkitError
from specbench_kit.methods.spec import parse_method


def test_every_round_sends_twenty_tokens() -> None:
    target = tiny_llama(0)
    runners = make_runner(target, 2, 260), make_runner(disturbed(target, 0.004), 2, 260)
    requests = make_requests(random_prompts([3, 9], 64), 40)
    records = decode(parse_method("specinfer"), runners, requests, batch_size=2)
    rounds = [step for record in records.values() for step in record.rounds]
    assert {step.submitted for step in rounds} == {20}
    assert {step.drafted for step in rounds} == {20}


@pytest.mark.parametrize("branching", ["0", "1-0-2", "1-x", ""])
def test_a_bad_shape_is_one_line(branching: str) -> None:
    with pytest.raises(SkitError, match="specinfer: branching must be"):
        parse_method(f"specinfer:branching={branching}")
