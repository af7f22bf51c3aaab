"""Rounds that go to the server's own decoding: when, at what cost, and with whose link."""

from dataclasses import replace
from itertools import product

import pytest
from environments import DEPLOYMENT, PAIR
from known_drafts import KnownDrafter, at
from nightly import nightly_except
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

from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts
from specbench_kit.methods.base import Latencies, LinkCosts
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.goodput import Goodput, _GoodputPolicy
from specbench_kit.methods.latency_aware import (
    LOSS_SHARE,
    REQUESTS_TO_LEARN,
    ROUNDS_TO_LEARN,
    ServerDecoding,
)
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link

LATENCY_AWARE = [
    "goodput",
    "adaspec",
    "sglang-throughput",
    "vllm-adaptive",
    "delay-optimal",
    "measured-link",
    "flexspec",
    "adaptive-quantised",
]


def place(rtt_s: float, draft_s: float = 0.002, verify_s: float = 0.04) -> Deployment:
    """A deployment whose forwards take the same time at every length."""
    drafter, verifier = (
        Endpoint("edge", TableModel((draft_s,))),
        Endpoint("server", TableModel((verify_s,))),
    )
    return Deployment("far", drafter, verifier, Link(rtt_s=rtt_s))


def seconds(records: list[RequestRecord]) -> float:
    """The time at which the last request of a run has finished."""
    return max(record.finished_s or 0.0 for record in records)


def test_a_round_trip_lengthens_the_draft_by_hand() -> None:
    """a = .7, draft 2, verify 20 (and 0 per token): with no link 5 tokens, with a round trip of 60 s 8 tokens.

    Tokens per round E = 1.7, 2.19, 2.533, 2.7731, 2.94117, 3.058819, 3.1411733, 3.19882131 for k = 1..8, over 20 + 2k:
    .0773 .0913 .0974 .0990 .0980; over 80 + 2k: .0207 .0261 .0295 .0315 .0327 .0332 .0334 .0333.
    """
    near = Latencies(TableModel((2.0,)), TableModel((20.0,)))
    far = near._replace(link=LinkCosts(rtt_s=60.0))
    drafts = KnownDrafter([[at()] * 9]).drafts
    speeds = [
        _GoodputPolicy(Goodput(), latencies).expected_speeds(drafts) for latencies in (near, far)
    ]
    assert [of.index(max(of)) for of in speeds] == [4, 7]
    assert speeds[0][1:6] == pytest.approx([0.0773, 0.0913, 0.0974, 0.0990, 0.0980], abs=1e-4)
    assert speeds[1][1:] == pytest.approx(
        [0.0207, 0.0261, 0.0295, 0.0315, 0.0327, 0.0332, 0.0334, 0.0333], abs=1e-4
    )


def test_devices_of_their_own_draft_at_the_same_time() -> None:
    """4 requests take 4 x 2 s a step on one device; each on its own device takes 2 s."""

    class PerRequest(TableModel):
        def seconds(self, rows: object) -> float:
            return 2.0 * len(rows)  # type: ignore[arg-type]

    near = Latencies(PerRequest((0.0,)), TableModel((20.0,)))
    drafts = KnownDrafter([[at()] * 9] * 4).drafts
    shared = _GoodputPolicy(Goodput(), near).expected_speeds(drafts)[1]
    apart = _GoodputPolicy(Goodput(), near._replace(link=LinkCosts())).expected_speeds(drafts)[1]
    assert (shared, apart) == pytest.approx((4 * 1.7 / 28, 4 * 1.7 / 22))


def test_nothing_is_drafted_where_not_even_a_perfect_draft_would_pay() -> None:
    """A round trip of 1 s against 40 ms a token: 9 tokens of the server alone take .36 s."""
    method = parse_method("goodput").prepare(environment(PAIR, place(rtt_s=1.0)))
    policy, drafter = method.policy(), KnownDrafter([[at()] * 9])
    policy.draft(drafter)
    assert drafter.drafts[0].tree.last == 0
    assert drafter.drafts[0].tree.server_continues


NEARBY = Latencies(TableModel((0.005,)), TableModel((0.04,)), LinkCosts(rtt_s=0.05))


def only(request: str) -> KnownDrafter:
    """A round of this one request alone."""
    drafter = KnownDrafter([[at()] * 4] * (int(request) + 1))
    drafter.drafts = drafter.drafts[-1:]
    return drafter


def drafted(policy: ServerDecoding, request: str) -> int:
    """The number of tokens that a round of this request drafts."""
    drafter = only(request)
    policy.draft(drafter)
    return drafter.drafts[0].tree.last


def judged(policy: ServerDecoding, request: str, seconds: float, accepted: int = 0) -> None:
    """Draft a round of this request that takes so long."""
    drafter = only(request)
    policy.draft(drafter)
    policy.judge(seconds, drafter.verdicts([[1, 2]], [accepted]))


def hopeful() -> ServerDecoding:
    """A policy that has seen so many accepted tokens that some draft length might always pay."""
    policy = ServerDecoding(FixedK(2).policy(), NEARBY, 8)
    policy.accepted = 1000
    return policy


def test_after_a_loss_the_server_decodes_until_another_attempt_is_affordable() -> None:
    """Rounds of 0.1 s (50 ms there and back) commit one token, which the server alone decodes in 40 ms: 60 ms lost.

    After 20 rounds to learn, the 21st loses .06 s, and the next attempt .05 s more. The server decodes until this is a
    hundredth of its time: .11 / (.01 x .04) = 275 rounds.
    """
    policy = hopeful()
    for _ in range(ROUNDS_TO_LEARN + 1):
        judged(policy, "0", 0.1)
    assert LOSS_SHARE == 0.01
    assert policy.left_to_server == 275
    assert [drafted(policy, "0") for _ in range(276)] == [0] * 275 + [2]
    judged(policy, "0", 0.1)  # this attempt is judged by its own rounds
    assert policy.left_to_server == 275


def test_a_new_request_is_judged_anew() -> None:
    policy = hopeful()
    for _ in range(ROUNDS_TO_LEARN + 1):
        judged(policy, "0", 0.1)
    assert drafted(policy, "0") == 0
    policy.forget("0")
    assert drafted(policy, "1") == 2


def test_a_loss_within_the_noise_of_few_rounds_is_no_loss() -> None:
    """Rounds that lose .06 and gain .02 s in turn have a deviation of .04 s: nine may lose .24 s, and do lose .22 s."""
    policy = hopeful()
    for number in range(ROUNDS_TO_LEARN + 9):
        judged(policy, "0", 0.1, accepted=2 * (number % 2))
    assert policy.run.variance == pytest.approx(0.04**2, rel=0.01)
    assert policy.attempts["0"].total_s == pytest.approx(5 * 0.06 - 4 * 0.02)
    assert policy.left_to_server == 0


def test_once_requests_lose_on_average_a_new_one_is_left_to_the_server_too() -> None:
    """Six requests of one round each lose .06 s; then a request that comes waits as all others do."""
    policy = hopeful()
    policy.rounds = ROUNDS_TO_LEARN
    for request in range(REQUESTS_TO_LEARN):
        assert drafted(policy, str(request)) == 2
        judged(policy, str(request), 0.1)
        policy.forget(str(request))
    assert list(policy.finished) == pytest.approx([0.06] * REQUESTS_TO_LEARN)
    assert drafted(policy, str(REQUESTS_TO_LEARN)) == 0


def test_requests_that_are_decoded_together_are_judged_together() -> None:
    """Two requests lose .06 s a round, which says nothing of others; six do."""
    for requests in (2, REQUESTS_TO_LEARN):
        policy = hopeful()
        policy.rounds = ROUNDS_TO_LEARN
        drafter = KnownDrafter([[at()] * 4] * requests)
        policy.draft(drafter)
        policy.judge(0.1, drafter.verdicts([[1, 2]] * requests, [0] * requests))
        assert (policy.left_to_server > 0) is (requests == REQUESTS_TO_LEARN)


def test_the_server_crosses_the_link_once_for_the_rounds_that_it_is_left_with() -> None:
    records = SyntheticPrompts(requests=2, prompt_tokens=8, output_tokens=24).decode(
        "goodput", place(rtt_s=1.0), "ranks=0.8"
    )
    for record in records:
        assert [step.link_s for step in record.rounds] == pytest.approx([1.0] + [0.0] * 23)
        assert record.e2e_s == pytest.approx(1.0 + 24 * 0.04)


def test_a_request_that_joins_delays_nobody_while_the_server_decodes() -> None:
    records = SyntheticPrompts(requests=5, prompt_tokens=8, output_tokens=12, batch_size=2).decode(
        "goodput", place(rtt_s=1.0), "ranks=0.8"
    )
    plain = SyntheticPrompts(requests=5, prompt_tokens=8, output_tokens=12, batch_size=2).decode(
        "autoregressive", place(rtt_s=1.0), ""
    )
    assert [(r.e2e_s, r.finished_s) for r in records] == [(r.e2e_s, r.finished_s) for r in plain]


def test_a_low_acceptance_rate_ends_the_attempt_before_the_rounds_to_learn() -> None:
    """7 accepted and 11 rejected tokens: the mean of beta(8, 12) is .4, two deviations above it are .6138.

    Drafts of up to 8 tokens then commit up to 1 + .6138 (1 - .6138^8) / .3862 = 2.557 tokens, which the server alone
    decodes in .102 s, and a round with 50 ms there and back takes .09 s and 5 ms a token: 1.99 tokens, two drafted, in
    .1 s against .0796 s; 8 in .13 s against .1023 s.
    """
    policy = ServerDecoding(FixedK(2).policy(), NEARBY, 8)
    assert drafted(policy, "0") == 2
    policy.accepted, policy.rejected = 7, 11
    drafts = only("0").drafts
    assert policy.likely_acceptance() == pytest.approx(0.6138, abs=1e-4)
    assert not policy.can_pay(drafts, policy.likely_acceptance())
    assert policy.can_pay(drafts, 0.8)
    judged(policy, "0", 0.1)
    assert policy.left_to_server > 0


@pytest.mark.parametrize("name", LATENCY_AWARE)
def test_where_drafting_cannot_pay_the_server_decodes_as_fast_as_alone(name: str) -> None:
    """Drafts take as long as the target's own tokens."""
    prompts = SyntheticPrompts(requests=3, prompt_tokens=8, output_tokens=32, batch_size=2)
    records, plain = (
        prompts.decode(spec, place(0.08, draft_s=0.04), "ranks=0.4")
        for spec in (name, "autoregressive")
    )
    assert seconds(records) == pytest.approx(seconds(plain))


@pytest.mark.parametrize(
    ("name", "batch_size"),
    nightly_except([("goodput", 4), ("adaspec", 1)], product(LATENCY_AWARE, (1, 4))),
)
def test_where_drafting_pays_with_other_drafts_the_attempt_costs_three_percent(
    name: str, batch_size: int
) -> None:
    prompts = SyntheticPrompts(
        requests=12, prompt_tokens=8, output_tokens=256, batch_size=batch_size
    )
    records, plain = (
        prompts.decode(spec, place(0.1), "ranks=0.4") for spec in (name, "autoregressive")
    )
    assert seconds(records) <= 1.03 * seconds(plain)


@pytest.mark.parametrize("name", LATENCY_AWARE)
def test_as_published_the_link_is_not_seen(name: str) -> None:
    far, near = (
        environment(PAIR, replace(DEPLOYMENT, link=Link(rtt_s=rtt_s))) for rtt_s in (1.0, 0.0)
    )
    blind, close = (
        parse_method(f"{name}:link=false").prepare(far),
        parse_method(f"{name}:link=false").prepare(near),
    )
    assert blind.uses() == close.uses()
    assert not isinstance(blind.policy(), ServerDecoding)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_output_stays_the_targets(batch_size: int) -> None:
    target = tiny_llama(0)
    runners = make_runner(target, 3, 200), make_runner(disturbed(target, 0.01), 3, 200)
    requests = make_requests(random_prompts([5, 9, 3, 7], 64), 24)
    plain = decode(AUTOREGRESSIVE, runners, requests, batch_size=batch_size)
    for rtt_s in (0.01, 1.0):
        method = parse_method("goodput:interval=2").prepare(environment(PAIR, place(rtt_s)))
        assert outputs(decode(method, runners, requests, batch_size=batch_size)) == outputs(plain)
