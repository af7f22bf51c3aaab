"""A server that drafts for its batch as its method decides."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import DEPLOYMENT, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.serving.drafter_costs import DrafterCosts
from specbench_kit.serving.execution import RoundDraft, RoundDrafting
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulation import simulate

SLOW = replace(
    DEPLOYMENT,
    drafter=replace(DEPLOYMENT.drafter, latency=InteractionModel(0.01, 0, 0, 0.1)),
    verifier=replace(DEPLOYMENT.verifier, latency=InteractionModel(0.001, 0, 0, 0.35)),
)
BATCH = [WaitingRound(client, 1, 50, 0.0, 9.0, 1.0, 9.0) for client in range(2)]


@pytest.mark.parametrize(
    ("longest", "learned", "seconds", "drafted"),
    [
        (9, False, 3 * 0.1 + 4 * 0.01 + 0.35 + (3 + 2) * 0.001, 2),
        (1, False, 0.1 + 2 * 0.01 + 0.35 + (2 + 2) * 0.001, 1),
        (9, True, 3 * 0.1 + 4 * (0.01 + 0.5) + 0.35 + (3 + 2) * 0.001, 2),
        (0, False, 0.35 + 2 * 0.001, 0),
    ],
)
def test_each_request_is_drafted_for_as_far_as_its_round_says(
    longest: int, learned: bool, seconds: float, drafted: int
) -> None:
    """The first request takes three forwards for two tokens, the second one for one; a decision takes half a second."""
    costs = DrafterCosts(learned=learned)
    drafts = RoundDrafting(
        replace(SLOW, predictor_s=0.5),
        lambda _: [RoundDraft(3, 2), RoundDraft(1, 1)],
        longest,
        costs,
    )
    assert drafts.run(BATCH, {}) == (pytest.approx(seconds), drafted)


def test_prompts_are_read_by_both_models_and_not_drafted_for() -> None:
    cold = WaitingRound(2, 30, 0, 0.0, 9.0, 1.0, 9.0)
    both_s = 0.1 + 31 * 0.01 + 0.35 + 31 * 0.001
    assert RoundDrafting(SLOW, lambda _: [], 9).run([BATCH[0], cold], {}) == (
        pytest.approx(both_s),
        0,
    )


@pytest.mark.parametrize(
    ("spec", "longest"), [("fixed-k:k=1", 1), ("fixed-k:k=3", 3), ("autoregressive", 0)]
)
def test_a_fixed_length_is_what_is_sent(spec: str, longest: int) -> None:
    method = parse_method(spec)
    scene = scenario("adaspec", 4, source=iid(0.8, 4), duration_s=8.0, warmup_s=0.0,
                     longest_draft=method.longest_draft)  # fmt: skip
    rounds = simulate(scene).rounds
    warm = np.isfinite(rounds["ended_s"]) & (rounds["cached"] > 0)
    assert warm.sum() > 10
    assert set(rounds["submitted"][warm]) <= {0.0, float(longest)}
    assert rounds["submitted"][warm].max() == longest


def drafted_by(spec: str, spread: float, devices: int = 6) -> dict[str, float]:
    """Return means per verification of responses that have begun, with the method's own rule on the server."""
    surroundings = environment(PairHashes("", ""), replace(SLOW, placement="server"))
    scene = scenario("adaspec", devices, deployment=SLOW, source=iid(0.7, 6, spread=spread), slo="0.5/s",
                     batch_method=parse_method(spec).prepare(surroundings), duration_s=120.0, warmup_s=0.0)  # fmt: skip
    rounds = simulate(scene).rounds
    warm = np.isfinite(rounds["ended_s"]) & (rounds["cached"] > 0)
    return {name: float(rounds[name][warm].mean()) for name in ("submitted", "accepted")}


def test_elimination_drops_the_tokens_of_single_requests_that_are_least_sure() -> None:
    """Verifying is expensive here: with varying confidence fewer tokens are sent, and more of them are right."""
    alike, trimmed = drafted_by("adaspec:max_draft=6", 0.0), drafted_by("adaspec:max_draft=6", 0.6)
    everything = drafted_by("adaspec:max_draft=6,elimination=false", 0.6)
    assert trimmed["submitted"] < everything["submitted"]
    rates = [means["accepted"] / means["submitted"] for means in (alike, everything, trimmed)]
    assert rates[2] > max(rates[:2])


def test_tokens_are_as_often_right_as_their_chances_say() -> None:
    confidence = iid(0.7, 1, spread=0.4).typical.confidence
    random = np.random.default_rng(0)
    accepted = (random.random(20_000) < 0.7).astype(int)
    chances = confidence.reported(accepted, random.random((20_000, 1)))[:, 0]
    for low in (0.1, 0.5, 0.8):
        of = (chances >= low) & (chances < low + 0.15)
        assert accepted[of].mean() == pytest.approx(chances[of].mean(), abs=0.03)
    assert chances.var() == pytest.approx(0.4 * 0.7 * 0.3, abs=0.005)


def test_an_overconfident_draft_model_tells_higher_odds_of_the_same_tokens() -> None:
    accepted, random = np.array([0, 1]), np.array([[0.2], [0.6]])
    honest, proud = (
        iid(0.5, 1, spread=0.4, overconfidence=by).typical.confidence for by in (1.0, 3.0)
    )
    is_so, claimed = honest.reported(accepted, random), proud.reported(accepted, random)
    assert claimed / (1 - claimed) == pytest.approx(3 * is_so / (1 - is_so))
    with pytest.raises(SkitError, match="overconfidence must be above 0, not 0"):
        iid(0.5, 1, overconfidence=0.0)


def test_a_step_with_prompts_drafts_for_the_others_if_the_server_mixes_them() -> None:
    """The first forward reads both prompts beside one token each, and the verification has all tokens."""
    cold = WaitingRound(2, 30, 0, 0.0, 9.0, 1.0, 9.0)
    part = WaitingRound(3, 90, 10, 0.0, 9.0, 1.0, 9.0)
    drafts = RoundDrafting(
        SLOW, lambda _: [RoundDraft(2, 2), RoundDraft(1, 1)], 9, mixes_prompts=True
    )
    seconds, drafted = drafts.run([*BATCH, cold, part], {3: 20})
    first_s = 0.1 + (2 + 30 + 20) * 0.01
    second_s = 0.1 + 0.01
    verify_s = 0.35 + (1 + 2 + 1 + 1 + 30 + 20) * 0.001
    assert seconds == pytest.approx(first_s + second_s + verify_s)
    assert list(drafted) == [2, 1, 0, 0]
    only_prompts = RoundDrafting(SLOW, lambda _: [], 9, mixes_prompts=True)
    seconds, drafted = only_prompts.run([cold], {})
    assert seconds == pytest.approx(0.1 + 0.3 + 0.35 + 0.03)
    assert list(drafted) == [0]
