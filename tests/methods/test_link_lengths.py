"""Draft lengths that are chosen for the link: the closed form, a measured round trip, energy, and precision."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
import torch
from environments import DEPLOYMENT
from known_drafts import KnownDrafter, at
from tiny_predictors import PAIR

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.latency import BatchSums, LatencyModel, TableModel
from specbench_kit.decoding.policy import Policy
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.adaptive_quantised import AdaptiveQuantised, _AdaptivePolicy
from specbench_kit.methods.base import Latencies, LinkCosts
from specbench_kit.methods.chosen_length import AcceptanceRate, expected_tokens
from specbench_kit.methods.delay_optimal import DelayOptimal, RoundParts, _DelayOptimalPolicy
from specbench_kit.methods.flexspec import FlexSpec, _FlexSpecPolicy
from specbench_kit.methods.latency_aware import ServerDecoding
from specbench_kit.methods.measured_link import MeasuredLink, _MeasuredLinkPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link

DRAFT, VERIFY = TableModel((1.0,)), TableModel((10.0,))
"""A second per drafted token, and ten per verification of any size."""


class PerToken(LatencyModel):
    """Half a second per token of the longest row."""

    def of_sums(self, sums: BatchSums) -> float:
        return 0.5 * sums.longest


def play(policy: Policy, took_s: float, accepted: Sequence[int] = (1,), produced: int = 1) -> int:
    """Return the draft length of one round that took so long, of requests that accept so many tokens."""
    clock = ModelledClock()
    drafter = KnownDrafter([[at()] * 30] * len(accepted), clock=clock, produced=produced)
    policy.draft(drafter)  # type: ignore[arg-type]
    clock.wait_until(took_s)
    policy.observe(drafter.verdicts(policy.choose(drafter.drafts), accepted))
    (length,) = {draft.tree.last for draft in drafter.drafts}
    return length


def test_the_closed_form_of_ucb_specstop() -> None:
    """The length is d_c = 1.5 x 1.7 / .98 - 2 / 2 = 1.602041 for a = .7, c_d = 1, c_v = .5.

    C(7 | 30) = (7 x 1.5 + 60 + .5) .3 / (1 - .7^8) = 71 x .3 / .942352 = 22.603.
    """
    delays_s = (1.0, 2.0, 30.0, 100.0)
    parts = [RoundParts(delay_s, draft_s=1.0, verify_s=0.5) for delay_s in delays_s]
    assert parts[0].critical_delay_s(0.7) == pytest.approx(1.602041, abs=1e-6)
    assert [part.best_length(0.7, 20) for part in parts] == [1, 2, 7, 10]
    assert parts[2].per_token_s(7, 0.7) == pytest.approx(22.603, abs=1e-3)
    assert parts[0].critical_delay_s(0.0) == inf


def test_below_the_critical_delay_one_token_is_the_best() -> None:
    """The threshold and a search over all lengths agree, a thousandth below and above it."""
    for acceptance in (0.2, 0.5, 0.9):
        critical_s = RoundParts(0.0, 1.0, 0.5).critical_delay_s(acceptance)
        for factor in (0.999, 1.001):
            part = RoundParts(factor * critical_s, 1.0, 0.5)
            costs_s = [part.per_token_s(length, acceptance) for length in range(1, 21)]
            cheapest = 1 + costs_s.index(min(costs_s))
            assert part.best_length(acceptance, 20) == cheapest
            assert (cheapest == 1) == (factor < 1)


def test_delay_optimal_drafts_the_length_of_its_formula() -> None:
    """30 s each way, 1 s per drafted and half a second per verified token, without anything fixed: k* = 7."""
    latencies = Latencies(DRAFT, PerToken(), LinkCosts(rtt_s=60.0))
    with_acceptance = _DelayOptimalPolicy(DelayOptimal(acceptance=0.7), latencies)
    part = with_acceptance.parts(KnownDrafter([[at()] * 30]).drafts)
    assert (part.delay_s, part.draft_s, part.verify_s) == pytest.approx((30.0, 1.0, 0.5))
    assert [play(with_acceptance, 71.0, accepted=[0]) for _ in range(3)] == [7, 7, 7]


def test_delay_optimal_counts_the_fixed_part_of_a_verification_as_delay() -> None:
    """10 s of any verification and 20 s of round trip are 15 s each way."""
    policy = _DelayOptimalPolicy(DelayOptimal(), Latencies(DRAFT, VERIFY, LinkCosts(rtt_s=20.0)))
    part = policy.parts(KnownDrafter([[at()] * 30]).drafts)
    assert (part.delay_s, part.draft_s, part.verify_s) == pytest.approx((15.0, 1.0, 0.0))


def test_the_acceptance_rate_forgets() -> None:
    """.7 of 10 tokens, then 1 of 2 with half the weight of the past: 4.5 of 7; no token after a rejection counts."""
    rate = AcceptanceRate(0.7, forget=0.5)
    drafter = KnownDrafter([[at()] * 9])
    for _ in range(4):
        drafter.extend(drafter.drafts)
    rate.learn(drafter.verdicts([[1, 2, 3, 4]], [1]))
    assert rate.value == pytest.approx(4.5 / 7)
    rate.learn(drafter.verdicts([[]], [0]))
    assert rate.value == pytest.approx(4.5 / 7)
    assert expected_tokens(0.5, 3) == 1.875


def test_delay_optimal_learns_unless_it_is_told() -> None:
    """Ten rounds that accept nothing make 7 of 10 tokens .02-weighted less and less: the length falls."""
    policy = _DelayOptimalPolicy(
        DelayOptimal(), Latencies(DRAFT, PerToken(), LinkCosts(rtt_s=60.0))
    )
    lengths = [play(policy, 71.0, accepted=[0]) for _ in range(10)]
    assert lengths[0] == 7
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 4


def test_measured_link_follows_the_round_trip() -> None:
    """With a = .5 a draft of k = 1, 2, .. commits 1.5, 1.75, 1.875, 1.9375, 1.96875 tokens in 10 + k + r seconds.

    No link is expected: 1.75 / 12 = .1458 is best. That round takes 40 s more than drafting and verifying, so r = 40:
    1.9375 / 54 = .03588 is best. The next rounds have no link: r = 20 with 1.9375 / 34 = .0570, then r = 10 with
    1.875 / 23 = .0815.
    """
    options = MeasuredLink(ema=0.5, initial_acceptance=0.5)
    policy = _MeasuredLinkPolicy(options, Latencies(DRAFT, VERIFY))
    assert [play(policy, took_s) for took_s in (52.0, 14.0, 14.0, 13.0)] == [2, 4, 4, 3]
    assert policy.estimate.measured_s == pytest.approx(5.0)


def test_measured_link_begins_with_the_deployments_round_trip() -> None:
    """20 s: 1.9375 / 34 is best; a round with a prompt in it changes nothing."""
    options = MeasuredLink(initial_acceptance=0.5)
    policy = _MeasuredLinkPolicy(options, Latencies(DRAFT, VERIFY, LinkCosts(rtt_s=20.0)))
    assert [play(policy, 900.0, produced=0) for _ in range(2)] == [4, 4]
    blind = _MeasuredLinkPolicy(replace(options, link=False), Latencies(DRAFT, VERIFY))
    assert [play(blind, 900.0) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize(("budget_j", "length"), [(None, 4), (30.0, 2), (20.0, 1)])
def test_flexspec_keeps_to_its_budget_of_energy(budget_j: float | None, length: int) -> None:
    """a = .5, 20 s on the way: 31 / 1.5, 32 / 1.75, 33 / 1.875, 34 / 1.9375, 35 / 1.96875 s per token; 4 is fastest.

    10 W while drafting and 1 W for the other 30 s: 40 / 1.5 = 26.7, 50 / 1.75 = 28.6, 60 / 1.875 = 32 J per token. 30 J
    leave lengths 1 and 2; 20 J leave none, and 1 takes the least.
    """
    options = FlexSpec(budget_j=budget_j, draft_w=10.0, radio_w=1.0, initial_acceptance=0.5)
    policy = _FlexSpecPolicy(options, Latencies(DRAFT, VERIFY, LinkCosts(rtt_s=20.0)))
    costs = policy.costs(KnownDrafter([[at()] * 30]).drafts)
    assert [cost.seconds for cost in costs[:5]] == pytest.approx(
        [20.667, 18.286, 17.6, 17.548, 17.778], abs=1e-3
    )
    assert [cost.joules for cost in costs[:3]] == pytest.approx([26.667, 28.571, 32.0], abs=1e-3)
    assert play(policy, 34.0) == length


def test_flexspec_follows_its_channel() -> None:
    """A round of 2 + 10 s that takes 52 s tells of 40 s on the way, for which 4 tokens are best (see above)."""
    policy = _FlexSpecPolicy(FlexSpec(initial_acceptance=0.5), Latencies(DRAFT, VERIFY))
    assert [play(policy, 52.0), play(policy, 54.0)] == [2, 4]


def adaptive(up_bytes_per_s: float) -> _AdaptivePolicy:
    """Return a policy at 20 s of round trip that has measured its distributions, of a vocabulary of 16."""
    link = LinkCosts(rtt_s=20.0, up_bytes=4.0, up_bytes_per_s=up_bytes_per_s)
    options = AdaptiveQuantised(top=4, levels="4-64", initial_acceptance=0.5)
    policy = _AdaptivePolicy(options, Latencies(DRAFT, VERIFY, link))
    policy.vocabulary, policy.distances, policy.used_distance = 16, {4: 0.1, 64: 0.01}, 0.01
    return policy


def test_adaptive_quantised_sends_fewer_bits_over_a_narrow_link() -> None:
    """C(16, 4) = 1820 sets of tokens take 10.83 bits; C(7, 3) = 35 shares of 4 levels 5.13, C(67, 3) = 47905 15.55.

    16 bits are 2 bytes, 27 bits 3.375. Over 64 bytes/s a token takes (4 + 2) / 64 = .094 s or .115 s, and the finer
    levels keep a = .5 where the coarser have .41: 1.875 / (33 + 3 x .1152) = .05623 against 1.647 / 33.28 = .0495. Over
    a quarter of a byte a second a token takes 24 or 29.5 s: 1.41 / (31 + 24) = .0256 against 1.5 / (31 + 29.5) = .0248.
    """
    drafts = KnownDrafter([[at()] * 30]).drafts
    wide, narrow = (adaptive(rate) for rate in (64.0, 0.25))
    best = [max(policy.plans(drafts), key=lambda plan: plan.speed) for policy in (wide, narrow)]
    assert [(plan.length, plan.levels) for plan in best] == [(3, 64), (1, 4)]
    assert [plan.speed for plan in best] == pytest.approx([1.875 / 33.345703125, 1.41 / 55.0])
    assert narrow.expected_acceptance(4) == pytest.approx(0.41)


def test_adaptive_quantised_measures_how_far_it_rounds() -> None:
    """(.6, .4) in halves is (.5, .5), .1 away; in fifths it is exact."""
    policy = _AdaptivePolicy(AdaptiveQuantised(top=2, levels="2-5"), Latencies(DRAFT, VERIFY))
    drawn_from = policy.rounded(torch.tensor([0.6, 0.4]))
    assert drawn_from.tolist() == pytest.approx([0.6, 0.4])
    assert policy.distances == pytest.approx({2: 0.01, 5: 0.0}, abs=1e-7)
    policy.levels = 2
    assert policy.rounded(torch.tensor([0.6, 0.4])).tolist() == [0.5, 0.5]
    assert policy.used_distance == pytest.approx(0.01)


@pytest.mark.parametrize(
    "name", ["delay-optimal", "measured-link", "flexspec", "adaptive-quantised"]
)
def test_they_leave_rounds_to_the_server_where_no_draft_can_pay(name: str) -> None:
    far = environment(PAIR, replace(DEPLOYMENT, link=Link(rtt_s=10.0)))
    policy = parse_method(name).prepare(far).policy()
    assert isinstance(policy, ServerDecoding)
    assert play(policy, 10.0, accepted=[0]) == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("delay-optimal:k_max=0", "delay-optimal: k_max must be at least 1, not 0"),
        ("delay-optimal:acceptance=2", r"delay-optimal: acceptance must lie in 0..1, not 2.0"),
        ("measured-link:ema=2", r"measured-link: ema must lie in 0..1, not 2.0"),
        ("flexspec:budget_j=0", "flexspec: budget_j must be a number of joules above 0, not 0.0"),
        ("flexspec:draft_w=-1", "flexspec: draft_w must be at least 0, not -1.0"),
        (
            "adaptive-quantised:levels=4-x",
            "adaptive-quantised: levels must be numbers from 1 on, as in 10-100",
        ),
    ],
)
def test_options_that_make_no_sense(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=message):
        parse_method(spec)
