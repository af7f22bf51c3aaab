"""What pearl sends and drafts ahead: nothing after an unforeseen token, the rest of a draft whose first was right."""

from itertools import pairwise
from typing import Any

import pytest
from environments import DEPLOYMENT
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 4, 200), make_runner(disturbed(target, 0.01), 4, 200)


def chains(spec: str, runners: Runners, **options: Any) -> list[list[RoundRecord]]:
    """Rounds by request, without the last ones, which the end of the output may cut short."""
    records = decode(parse_method(spec), runners, make_requests(random_prompts([5, 9, 3], 64), 40), **options)
    return [record.rounds[:-2] for record in records.values()]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_miss_is_followed_by_pre_verification_and_a_hit_by_the_rest_of_the_draft(
    runners: Runners, batch_size: int
) -> None:
    modes = set()
    for rounds in chains("pearl:k=3", runners, batch_size=batch_size):
        assert rounds[0].submitted == 0
        for before, step in pairwise(rounds):
            modes.add(before.aligned)
            assert step.submitted == (2 if before.aligned else 0)
            assert step.proactive == 3
            assert step.aligned <= (step.accepted == step.submitted), "a wrong token stops the draft"
            assert step.committed == step.accepted + 1
    assert modes == {True, False}


def test_a_draft_that_is_always_right_commits_k_tokens_per_verification() -> None:
    """One pre-verification; from then on the drafts never end."""
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(0), 4, 200)
    for rounds in chains("pearl:k=4", runners):
        assert [step.committed for step in rounds] == [1] + [4] * (len(rounds) - 1)
        assert {step.reused for step in rounds[1:]} == {3}, "nothing is drafted while the target waits"


def test_without_pre_verification_a_draft_is_finished_first(runners: Runners) -> None:
    for rounds in chains("pearl:k=3,pre_verify=false", runners):
        assert rounds[0].submitted == 3
        assert all(step.submitted == (2 if before.aligned else 3) for before, step in pairwise(rounds))


def test_drafting_hides_behind_verification_on_the_modelled_clock() -> None:
    """A perfect draft of k = 4 fits into the 20 ms that an answer takes: a round lasts no longer than its answer."""
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(0), 4, 200)
    (rounds,) = [
        record.rounds
        for record in decode(
            parse_method("pearl:k=4"), runners, make_requests([[1, 2, 3]], 40), deployment=DEPLOYMENT
        ).values()
    ]
    for before, step in pairwise(rounds[1:-2]):
        assert step.end_s - before.end_s == pytest.approx(step.verify_s + step.link_s)
        assert step.draft_s > 0


def test_options_that_make_no_sense() -> None:
    with pytest.raises(SkitError, match="pearl: k must be at least 2"):
        parse_method("pearl:k=1")
