"""A tree of the same shape in every round."""

from itertools import pairwise

import pytest
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import load
from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts
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


def test_a_guess_that_comes_true_brings_its_tree_along() -> None:
    """Each tree has the one shape, whether it was drafted before the verdict or after."""
    target = tiny_llama(0)
    runners = make_runner(target, 3, 300), make_runner(disturbed(target, 0.01), 3, 300)
    requests = make_requests(random_prompts([3, 9, 30], 64), 60)
    records = decode(
        parse_method("specinfer:branching=2-1-2,guesses=6"), runners, requests, batch_size=3
    )
    assert outputs(records) == outputs(decode(AUTOREGRESSIVE, runners, requests, batch_size=3))
    rounds = [step for record in records.values() for step in record.rounds]
    assert {step.submitted for step in rounds} == {8}
    assert 0 < sum(step.aligned for step in rounds) < len(rounds)
    assert any(step.reused for step in rounds)


def test_a_pipeline_verifies_while_the_next_tree_is_drafted() -> None:
    """A pass takes 302.39 ms and each of eight levels 17 ms, which the pass hides; the first guess is always right."""
    index = load("specpipe-published", ())
    assert index is not None
    prompts, per_round = SyntheticPrompts(requests=1, output_tokens=60), {}
    for guesses in (0, 1):
        (record,) = prompts.decode(f"specinfer:guesses={guesses}", index, "ranks=1")
        ends_s = [step.end_s for step in record.rounds]
        per_round[guesses] = [end_s - start_s for start_s, end_s in pairwise(ends_s)]
    assert per_round[0] == pytest.approx([0.30239 + 8 * 0.017] * 6)
    assert per_round[1] == pytest.approx([0.30239] * 6)


def test_guesses_below_none_are_one_line() -> None:
    with pytest.raises(SkitError, match="specinfer: guesses must be at least 0, not -1"):
        parse_method("specinfer:guesses=-1")
