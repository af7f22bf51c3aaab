"""A draft model that paused first forwards the tokens of the pause, and a deployment charges it for them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from environments import DEPLOYMENT
from tiny_models import (
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    tiny_llama,
)

from specbench_kit.deployments.single_request_clock import SingleRequestClock
from specbench_kit.methods.base import Method, Policy

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter

DRAFTED = 2
PAUSE = 3
"""Rounds without a draft between two rounds with one."""
PROMPT = 5


@dataclass(frozen=True)
class Pausing(Method):
    """Draft two tokens in one round, and none in the three that follow."""

    def policy(self) -> Policy:
        return _PausingPolicy()


class _PausingPolicy(Policy):
    def __init__(self) -> None:
        self.round = 0

    def draft(self, drafter: "Drafter") -> None:
        if self.round % (PAUSE + 1) == 0:
            for _ in range(DRAFTED):
                drafter.extend(drafter.drafts)
        self.round += 1


def test_the_first_draft_after_a_pause_is_charged_for_the_tokens_of_the_pause() -> None:
    model = tiny_llama(0)
    (prompt,) = clear_prompts(model, [PROMPT], 24)
    runners = make_runner(model, 1, 64), make_runner(disturbed(model, 0.01), 1, 64)
    records = decode(Pausing(), runners, make_requests([prompt], 24), deployment=DEPLOYMENT)
    assert outputs(records)["000"] == plain_greedy(model, prompt, 24)[0]
    latency, context, cached, checked = DEPLOYMENT.drafter.latency, PROMPT, PROMPT - 1, 0
    for step in records["000"].rounds:
        if step.drafted:
            missing = context - cached
            first_s, second_s = (
                latency.seconds([(missing, cached)]),
                latency.seconds([(1, context)]),
            )
            assert step.draft_s == pytest.approx(first_s + second_s, rel=1e-12)
            checked += missing > PAUSE
            cached = context + min(DRAFTED - 1, step.accepted)
        context += step.committed
    assert checked >= 2, "drafts after a pause, whose first forward has the tokens of the pause"


def test_the_clock_of_one_request_charges_the_same() -> None:
    clock = SingleRequestClock(DEPLOYMENT, on_edge=True, learned=False)
    clock.begin("000", PROMPT)
    first = clock.round(PROMPT, DRAFTED, DRAFTED, 1, 2)
    pauses = [clock.round(PROMPT + 2 + token, 0, 0, 0, 1) for token in range(PAUSE)]
    after = clock.round(PROMPT + 2 + PAUSE, DRAFTED, DRAFTED, 0, 1)
    assert first.draft_s < after.draft_s
    assert {times.draft_s for times in pauses} == {0.0}
    latency, cached = DEPLOYMENT.drafter.latency, PROMPT + 1
    wanted_s = latency.seconds([(1 + PAUSE, cached)]) + latency.seconds([(1, cached + 1 + PAUSE)])
    assert after.draft_s == pytest.approx(wanted_s, rel=1e-12)


def test_the_clock_of_one_request_charges_a_predictor_for_every_drafted_token() -> None:
    """What it decides takes the drafting device's time; a prompt is read without it."""
    deployment = replace(DEPLOYMENT, predictor_s=0.25)
    learned, plain = (
        SingleRequestClock(deployment, on_edge=True, learned=learned) for learned in (True, False)
    )
    for clock in (learned, plain):
        clock.begin("000", PROMPT)
    first, without = (clock.round(PROMPT, 3, DRAFTED, 1, 2) for clock in (learned, plain))
    assert (first.policy_s, without.policy_s) == (0.75, 0.0)
    assert (first.prefill_s, first.draft_s, first.verify_s) == (
        without.prefill_s,
        without.draft_s,
        without.verify_s,
    )
    assert learned.drafting_s == pytest.approx(first.prefill_s + first.draft_s + 0.75, rel=1e-12)
    assert plain.drafting_s == pytest.approx(without.prefill_s + without.draft_s, rel=1e-12)
    assert first.end_s - without.end_s == pytest.approx(0.75, rel=1e-9)
    learned.begin("001", PROMPT)
    assert learned.drafting_s == 0.0
