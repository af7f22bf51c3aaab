"""The rungs below the oracle: tail-pruning and the best rule over draft-side signals, by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_predictors import confidence_predictor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import TableModel
from specbench_kit.methods.base import Latencies, LinkCosts
from specbench_kit.methods.reachable import _ReachablePolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.tail_pruning import TailPruning
from specbench_kit.predictors.artefact import load
from specbench_kit.predictors.optimal_stopping import ChanceModel, RoundSeconds, StoppingRule


def drafted_and_sent(confidences: Sequence[float], options: TailPruning) -> tuple[int, int]:
    drafter = KnownDrafter([[at(confidence=confidence) for confidence in confidences]])
    policy = options.policy()
    policy.draft(drafter)  # type: ignore[arg-type]
    (sent,) = policy.choose(drafter.drafts)
    return drafter.drafts[0].tree.last, len(sent)


@pytest.mark.parametrize(
    ("confidences", "drafted", "sent"),
    [
        # .9 x .9 x .8 x .9 = .583 go on; a token of .5 leaves .292: of the second block nothing is sent.
        ([0.9, 0.9, 0.8, 0.9, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9], 8, 4),
        # .9, then .27: the first block is the last, with one token before its tail.
        ([0.9, 0.3, 0.9, 0.9, 0.9], 4, 1),
        # A first token of .2 is sent all the same.
        ([0.2, 0.9, 0.9, 0.9, 0.9], 4, 1),
        # .95 to the twelfth is .540: drafting ends at max_draft.
        ([0.95] * 14, 12, 12),
    ],
)
def test_tail_pruning_drafts_in_blocks_and_sends_no_tail(
    confidences: list[float], drafted: int, sent: int
) -> None:
    assert drafted_and_sent(confidences, TailPruning(block=4, threshold=0.3, max_draft=12)) == (
        drafted,
        sent,
    )


def test_a_block_of_one_stops_at_the_first_pruned_token() -> None:
    assert drafted_and_sent([0.9, 0.3, 0.9, 0.9], TailPruning(block=1)) == (2, 1)


def two_classes() -> ChanceModel:
    """Return a model in which tokens of chance .5 and .9 follow each other in any order, each half of the time."""
    model = ChanceModel(edges=(0.7,))
    model.sums, model.counts = model.sums * 0 + (0.5e9, 0.9e9), model.counts * 0 + 1e9
    return model


@pytest.mark.parametrize(
    ("draft_s", "speed", "after_unsure"),
    [
        # Two tokens at 1 s each on top of 10 s: (1 + .7 + .49) / 12, and .5 x .7 gained by the second exceed .1825.
        (1.0, 2.19 / 12, True),
        # At 3 s, (1 + .7 + .49) / 16 = .1369 is less than (1 + .7 + .5 x .9 x .7) / 14.5 = .1390: .35 < 3 x .1390.
        (3.0, 2.015 / 14.5, False),
    ],
)
def test_the_best_rule_by_hand(draft_s: float, speed: float, after_unsure: bool) -> None:
    rule = StoppingRule(two_classes(), RoundSeconds(10.0, [draft_s] * 2, [0.0] * 2))
    assert rule.speed == pytest.approx(speed)
    assert rule.goes_on(1, 0.9, 0.9)
    assert rule.goes_on(1, 0.5, 0.5) == after_unsure
    assert not rule.goes_on(2, 0.9, 0.81)


def test_a_token_that_costs_more_to_send_than_it_gains_is_withheld() -> None:
    """One token at 1 s, and 5 s to send it on top of 10 s.

    To send it always gives 1.7 / 16 = .10625, and only if it is sure (1 + .45) / 13.5 = .1074: then 5 s cost .537, more
    than .5.
    """
    rule = StoppingRule(two_classes(), RoundSeconds(10.0, [1.0], [5.0]))
    assert rule.speed == pytest.approx(1.45 / 13.5)
    assert rule.sends(1, 0.9, 0.9)
    assert not rule.sends(1, 0.5, 0.5)


def test_chances_are_counted_without_outcomes() -> None:
    """Two classes of one smoothing count each: (.9, .9, .5) makes one step sure -> sure and one sure -> unsure."""
    model = ChanceModel(edges=(0.7,))
    assert model.start.tolist() == [0.5, 0.5]
    model.learn([0.9, 0.9, 0.5])
    model.learn([])
    assert model.start == pytest.approx([0.25, 0.75])
    assert model.chances == pytest.approx([(0.35 + 0.5) / 2, (0.85 + 1.8) / 3])
    assert model.following[1] == pytest.approx([(1 + 0.4) / 3, (1 + 0.6) / 3])
    assert model.following[0] == pytest.approx([0.4, 0.6])


@pytest.fixture
def policy(tmp_path: Path) -> _ReachablePolicy:
    """Drafts at 1 s, verifications of 10 s and 20 s on the way; confidence .5 is a chance of .5, .9 one of .96."""
    predictor = load(confidence_predictor(tmp_path))
    return _ReachablePolicy(
        predictor, Latencies(TableModel((1.0,)), TableModel((10.0,)), LinkCosts(rtt_s=20.0)), 6
    )


def test_reachable_stops_behind_an_unlikely_token(policy: _ReachablePolicy) -> None:
    sure, unsure = at(confidence=0.9), at(confidence=0.1)
    for _ in range(3):
        drafter = KnownDrafter([[sure] * 9, [sure, sure, unsure, sure, sure]])
        policy.draft(drafter)  # type: ignore[arg-type]
        chosen = policy.choose(drafter.drafts)
        policy.observe(drafter.verdicts(chosen, [0, 0]))
    assert [draft.tree.last for draft in drafter.drafts] == [6, 3]
    assert len(chosen[0]) == 6
    # e^(8 x .9 - 4) / (1 + e^3.2) = .96083: the chance of six such tokens is the sum of its powers.
    assert policy.expects(drafter.drafts[0], chosen[0]) == pytest.approx(
        sum(0.960834**n for n in range(1, 7)), abs=1e-4
    )


def test_reachable_shares_its_seconds_between_the_requests(policy: _ReachablePolicy) -> None:
    """Each request drafts on a device of its own: a second of a batch of two costs each of them half of it."""
    seconds = policy.round_seconds(KnownDrafter([[at()] * 9] * 2).drafts)
    assert seconds.base_s == 15.0
    assert seconds.draft_s == [0.5] * 6
    assert seconds.send_s == [0.0] * 6


def test_reachable_needs_a_predictor_of_other_prompts(tmp_path: Path) -> None:
    with pytest.raises(
        SkitError, match="reachable: no predictor for this pair of models: run skit train-predictor"
    ):
        parse_method("reachable").prepare(ENVIRONMENT)
    ready = parse_method(f"reachable:predictor={confidence_predictor(tmp_path)}").prepare(
        ENVIRONMENT
    )
    assert ready.trained_on == frozenset()
    assert set(ready.uses()) == {"latencies", "predictor"}
