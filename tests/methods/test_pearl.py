"""What pearl and decoupled send: nothing after an unforeseen token, the rest of a draft whose first was right."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from environments import DEPLOYMENT
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
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 4, 200), make_runner(disturbed(target, 0.01), 4, 200)


def chains(spec: str, runners: Runners, **options: Any) -> list[list[RoundRecord]]:
    """Rounds by request, without the last ones, which the end of the output may cut short."""
    records = decode(
        parse_method(spec), runners, make_requests(random_prompts([5, 9, 3], 64), 40), **options
    )
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
            assert step.aligned <= (step.accepted == step.submitted), (
                "a wrong token stops the draft"
            )
            assert step.committed == step.accepted + 1
    assert modes == {True, False}


def test_a_draft_that_is_always_right_commits_k_tokens_per_verification() -> None:
    """One pre-verification; from then on the drafts never end."""
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(0), 4, 200)
    for rounds in chains("pearl:k=4", runners):
        assert [step.committed for step in rounds] == [1] + [4] * (len(rounds) - 1)
        assert {step.reused for step in rounds[1:]} == {3}, (
            "nothing is drafted while the target waits"
        )


def test_without_pre_verification_a_draft_is_finished_first(runners: Runners) -> None:
    for rounds in chains("pearl:k=3,pre_verify=false", runners):
        assert rounds[0].submitted == 3
        assert all(
            step.submitted == (2 if before.aligned else 3) for before, step in pairwise(rounds)
        )


def test_drafting_hides_behind_verification_on_the_modelled_clock() -> None:
    """A perfect draft of k = 4 fits into the 20 ms that an answer takes: a round lasts no longer than its answer."""
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(0), 4, 200)
    (rounds,) = [
        record.rounds
        for record in decode(
            parse_method("pearl:k=4"),
            runners,
            make_requests([[1, 2, 3]], 40),
            deployment=DEPLOYMENT,
        ).values()
    ]
    for before, step in pairwise(rounds[1:-2]):
        assert step.end_s - before.end_s == pytest.approx(step.verify_s + step.link_s)
        assert step.draft_s > 0


def slow_link(rtt_s: float) -> Deployment:
    return replace(DEPLOYMENT, link=Link(rtt_s=rtt_s))


def test_chunks_in_flight_hide_the_link() -> None:
    """A perfect draft: k = 4 tokens take 4.04 ms to draft, less than the 10.4 ms of their verification.

    Answers thus come as fast as the server verifies, once the pipeline is full, though a round trip takes 30 ms. With
    one chunk in flight every round waits for its own.
    """
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(0), 4, 200)
    for spec, hidden in (("decoupled:k=4,in_flight=9", True), ("pearl:k=4", False)):
        method = parse_method(spec)
        records = decode(
            method, runners, make_requests([[1, 2, 3]], 120), deployment=slow_link(0.03)
        )
        (rounds,) = [record.rounds for record in records.values()]
        for before, step in list(pairwise(rounds))[8:-10]:
            assert step.committed == 4
            wait_s = step.end_s - before.end_s
            assert wait_s == pytest.approx(step.verify_s if hidden else step.verify_s + step.link_s)


def test_a_draft_that_is_always_wrong_is_as_fast_as_the_server_alone() -> None:
    runners = make_runner(tiny_llama(0), 4, 200), make_runner(tiny_llama(3), 4, 200)
    method = parse_method("decoupled:k=4")
    (record,) = decode(
        method, runners, make_requests([[1, 2, 3]], 40), deployment=slow_link(0.03)
    ).values()
    misses = [
        (before, step)
        for before, step in pairwise(record.rounds)
        if not (before.aligned or step.aligned)
    ]
    assert len(misses) > 20
    for before, step in misses:
        assert (step.submitted, step.committed) == (0, 1)
        # A forward of the device that has begun when the answer arrives is finished: 1.02 ms at most.
        assert step.end_s - before.end_s == pytest.approx(step.verify_s, abs=1.02e-3)


def test_a_server_that_never_waits_loses_nothing_to_a_long_link(runners: Runners) -> None:
    """Over a real link of 80 ms it was 1.08 times the server alone, where a server that waited was half as fast.

    A forward of the device that has begun when the last answer arrives is finished: 1.02 ms at most.
    """
    requests = make_requests([[1, 2, 3]], 60)
    for rtt_s in (0.0, 0.02, 0.08):
        specs = (AUTOREGRESSIVE, parse_method("decoupled:k=4"))
        alone_s, took_s = (
            next(
                iter(decode(method, runners, requests, deployment=slow_link(rtt_s)).values())
            ).e2e_s
            for method in specs
        )
        assert took_s <= alone_s + 1.02e-3, rtt_s


def test_a_chunk_is_verified_when_it_has_arrived_and_not_before(runners: Runners) -> None:
    """A chunk comes 34 ms after a wrong token: two ways over the link and 4 forwards, three steps of the server."""
    method = parse_method("decoupled:k=4,in_flight=9")
    records = decode(
        method,
        runners,
        make_requests(random_prompts([5, 9, 3], 64), 60),
        deployment=slow_link(0.03),
    )
    wrong = 0
    for record in records.values():
        assert record.rounds[0].submitted == 0
        for number, step in enumerate(record.rounds):
            if step.accepted < step.submitted:
                wrong += 1
                assert not any(after.submitted for after in record.rounds[number + 1 : number + 4])
    assert wrong >= 3


def test_what_is_in_flight_loses_nothing_and_is_bounded(runners: Runners) -> None:
    method, requests = (
        parse_method("decoupled:k=3,in_flight=2"),
        make_requests(random_prompts([5, 9, 3], 64), 40),
    )
    plain = decode(AUTOREGRESSIVE, runners, requests)
    found = decode(method, runners, requests, deployment=slow_link(0.1), batch_size=2)
    assert outputs(found) == outputs(plain)
    rounds = [step for record in found.values() for step in record.rounds]
    assert any(step.aligned for step in rounds)
    assert max(step.drafted + step.reused for step in rounds) <= 6


def test_options_that_make_no_sense() -> None:
    with pytest.raises(SkitError, match="pearl: k must be at least 2"):
        parse_method("pearl:k=1")
