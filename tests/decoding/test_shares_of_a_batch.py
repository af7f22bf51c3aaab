"""How a batch's time is shared out: every phase second of every record, worked out by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    random_prompts,
    tiny_llama,
)

from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.base import Method, Policy
from specbench_kit.methods.threshold import Threshold
from specbench_kit.runs.deployment import Link
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

# Milliseconds: a draft step 9 + 1 per new token, a verification 100 + 10 per new token, a message 50 + 10 per token
# up or 20 per token down, a decision 5.
SCENE = Deployment(
    "scene",
    drafter=Endpoint("edge", InteractionModel(a_s=0.001, b_compute_s=0, b_read_s=0, c_s=0.009)),
    verifier=Endpoint("server", InteractionModel(a_s=0.010, b_compute_s=0, b_read_s=0, c_s=0.100)),
    link=Link(rtt_s=0.1, up_bytes_per_s=400, down_bytes_per_s=200),
    predictor_s=0.005,
)
HEADER = TraceHeader(3, 0.0, (), {})
PHASES = ("prefill", "draft", "policy", "link", "queue", "verify", "commit")


@dataclass(frozen=True)
class JudgedThreshold(Threshold):
    """Sends the token at which it stops, and pays for every decision."""

    learned = True


def trace(name: str, prompt: int, right: list[int], sure: list[int]) -> RequestTrace:
    """Make a draft that is right for `right[t]` tokens at offset t, and unsure first of token number `sure[t]`."""
    answer = list(range(100, 100 + len(right) + 4))
    drafted, statistics = (
        np.zeros((len(right), 3), np.int32),
        np.full((len(right), 3, 5), 0.1, np.float32),
    )
    for offset, (count, passed) in enumerate(zip(right, sure, strict=True)):
        drafted[offset, :count] = answer[offset : offset + count]
        statistics[offset, :passed] = 0.9
    output, continuation = answer[: len(right)], answer[len(right) :]
    return RequestTrace(
        name, "test", list(range(prompt)), output, "length", continuation, drafted, statistics
    )


@pytest.fixture
def batch() -> dict[str, RequestRecord]:
    """Two rounds of two requests: prompts of 4 and 9 tokens, drafts of 1 and 3 tokens, then of 1 and 2."""
    traces = [trace("a", 4, [1, 0, 0], [0, 0, 0]), trace("b", 9, [2, 0, 0, 1, 0], [3, 0, 0, 1, 0])]
    records = replay(JudgedThreshold(max_draft=3), HEADER, traces, deployment=SCENE, batch_size=2)
    return {record.request_id: record for record in records}


def in_ms(record: RequestRecord, number: int) -> list[float]:
    step = record.rounds[number]
    return [1000 * getattr(step, f"{phase}_s") for phase in PHASES]


def test_the_first_round_pays_for_the_prompts(batch: dict[str, RequestRecord]) -> None:
    # a: prompt 9 + 3, one step 9 + 1, one decision 5: sent at 27, 4 + 1 tokens up take 100, there at 127.
    # b: prompt 9 + 8, three steps 30, three decisions 15: sent at 62, 9 + 3 tokens up take 170, there at 232.
    # Verified together from 232 on: 100 + 10 x (5 + 12) = 270. Down: 1 + 1 tokens 90, 2 + 1 tokens 110.
    drafted, other_phases = 10 + 30, [12 + 17, 5 + 15, 100 + 170 + 90 + 110, 232 - 127, 270]
    prefill, policy, link, queue, verify = other_phases
    for name, of_draft, of_rest in (("a", 1 / 4, 5 / 17), ("b", 3 / 4, 12 / 17)):
        shared = [part * of_rest for part in (policy, link, queue, verify, 0)]
        assert in_ms(batch[name], 0) == pytest.approx(
            [prefill * of_rest, drafted * of_draft, *shared]
        )
        assert batch[name].rounds[0].end_s == pytest.approx(0.232 + 0.270 + 0.110)
        assert batch[name].ttft_s == batch[name].rounds[0].end_s


def test_later_rounds_share_by_what_was_sent(batch: dict[str, RequestRecord]) -> None:
    # The round begins at 612. a: a step over the two tokens that its draft model lacks 9 + 2, a decision 5, 1 token up
    # 60: there at 688. b: two steps 20, two decisions 10, 2 tokens up 70: there at 712.
    # Verified from 712 on: 100 + 10 x (2 + 3) = 150. Down: 1 token 70, 1 + 1 tokens 90.
    for name, of_draft, of_rest in (("a", 1 / 3, 2 / 5), ("b", 2 / 3, 3 / 5)):
        shared = [part * of_rest for part in (5 + 10, 60 + 70 + 70 + 90, 712 - 688, 150, 0)]
        assert in_ms(batch[name], 1) == pytest.approx([0, (11 + 20) * of_draft, *shared])
        assert batch[name].rounds[1].end_s == pytest.approx(0.712 + 0.150 + 0.090)
    assert [len(record.rounds) for record in batch.values()] == [2, 2]


def test_counts_of_the_scene(batch: dict[str, RequestRecord]) -> None:
    counts = {
        name: [
            (step.drafted, step.submitted, step.accepted, step.committed) for step in record.rounds
        ]
        for name, record in batch.items()
    }
    assert counts == {"a": [(1, 1, 1, 2), (1, 1, 0, 1)], "b": [(3, 3, 2, 3), (2, 2, 1, 2)]}


@pytest.fixture
def on_the_server() -> list[RequestRecord]:
    traces = [trace("a", 4, [1, 0, 0], [0, 0, 0]), trace("b", 9, [2, 0, 0, 1, 0], [3, 0, 0, 1, 0])]
    deployment = replace(SCENE, placement="server")
    return list(
        replay(JudgedThreshold(max_draft=3), HEADER, traces, deployment=deployment, batch_size=2)
    )


def test_a_shared_drafter_goes_in_step(on_the_server: list[RequestRecord]) -> None:
    """Three steps over 2, 1 and 1 requests, the prompts one by one, four decisions one after the other."""
    first = [record.rounds[0] for record in on_the_server]
    drafted_ms = (9 + 2) + (9 + 1) + (9 + 1)
    assert [1000 * step.draft_s for step in first] == pytest.approx(
        [drafted_ms / 4, drafted_ms * 3 / 4]
    )
    assert 1000 * sum(step.prefill_s for step in first) == pytest.approx(12 + 17)
    assert 1000 * sum(step.policy_s for step in first) == pytest.approx(4 * 5)


def test_who_joins_a_batch_brings_a_prompt_of_its_own() -> None:
    """Three prompts of 4 tokens, the last in the place of the first: each is read once, 9 + 3 ms."""
    short, longer = trace("a", 4, [0], [0]), trace("b", 4, [0] * 3, [0] * 3)
    requests = [short, longer, replace(short, request_id="c")]
    records = list(
        replay(JudgedThreshold(max_draft=3), HEADER, requests, deployment=SCENE, batch_size=2)
    )
    prefills_ms = {
        record.request_id: [1000 * round_.prefill_s for round_ in record.rounds]
        for record in records
    }
    assert sum(map(sum, prefills_ms.values())) == pytest.approx(3 * 12)
    # c computes 4 + 1 tokens in its round, b beside it 1 + 1.
    assert prefills_ms == {
        "a": pytest.approx([12]),
        "b": pytest.approx([12, 12 * 2 / 7, 0]),
        "c": pytest.approx([12 * 5 / 7]),
    }


class _Uneven(Policy):
    """One token for the first request, three for the second."""

    def draft(self, drafter: Drafter) -> None:
        for _ in range(3):
            drafter.extend(
                [
                    draft
                    for draft in drafter.drafts
                    if len(draft.tree) - 1 < (3 if draft.request_id == "001" else 1)
                ]
            )


@dataclass(frozen=True)
class Uneven(Method):
    def policy(self) -> Policy:
        return _Uneven()


def test_measured_time_is_shared_by_the_same_tokens() -> None:
    """Prompts of 5 and 17 tokens: verified are 5 + 1 and 17 + 3 of them, drafted 1 and 3."""
    runners = make_runner(tiny_llama(0), 2, 64), make_runner(tiny_llama(1), 2, 64)
    records = decode(Uneven(), runners, make_requests(random_prompts([5, 17], 64), 1), batch_size=2)
    first, second = (records[name].rounds[0] for name in ("000", "001"))
    assert (first.drafted, second.drafted) == (1, 3)
    assert second.draft_s / first.draft_s == pytest.approx(3)
    for phase in ("prefill", "policy", "verify", "commit"):
        assert getattr(second, f"{phase}_s") / getattr(first, f"{phase}_s") == pytest.approx(
            20 / 6
        ), phase


def test_models_are_asked_the_same_under_a_deployment() -> None:
    """Only the time is another: the first request drafts one token a round, the second three."""
    target = tiny_llama(0)
    runners = make_runner(target, 2, 64), make_runner(disturbed(target, 0.02), 2, 64)
    requests = make_requests(random_prompts([5, 17], 64), 12)
    live, modelled = (
        decode(Uneven(), runners, requests, batch_size=2, deployment=deployment)
        for deployment in (None, SCENE)
    )
    for name, record in modelled.items():
        assert record.output_ids == live[name].output_ids
        assert [step.accepted for step in record.rounds] == [
            step.accepted for step in live[name].rounds
        ]
    assert sum(step.accepted for record in modelled.values() for step in record.rounds) > 0


class _Ahead(Policy):
    """One token, two more while the target verifies, and on from the second of these: the first is the extra token."""

    def draft(self, drafter: Drafter) -> None:
        drafter.extend(drafter.drafts)

    def overlap(self, drafter: Drafter) -> None:
        for _ in range(2):
            drafter.extend(drafter.drafts)

    def next_root(self, verdict: Verdict) -> int | None:
        tree: Draft = verdict.draft
        ahead = verdict.submitted[-1] + 1
        all_accepted = verdict.path == verdict.submitted
        return ahead if all_accepted and tree.tree.tokens[ahead] == verdict.bonus else None


@dataclass(frozen=True)
class Ahead(Method):
    overlaps = True

    def policy(self) -> Policy:
        return _Ahead()


def test_the_last_inherited_node_is_reused_too() -> None:
    """The models agree, so each round after the first inherits one node, drafts one, and both are accepted."""
    target = tiny_llama(0)
    runners = make_runner(target, 1, 64), make_runner(target, 1, 64)
    (request,) = make_requests(random_prompts([6], 64), 8)
    rounds = decode(Ahead(), runners, [request])["000"].rounds
    assert [(step.submitted, step.accepted, step.committed, step.reused) for step in rounds] == [
        (1, 1, 2, 0),
        (2, 2, 3, 1),
        (2, 2, 3, 1),
    ]
    assert [(step.drafted, step.proactive, step.aligned) for step in rounds] == [(3, 2, True)] * 3
    assert decode(AUTOREGRESSIVE, runners, [request])["000"].rounds[0].reused == 0
