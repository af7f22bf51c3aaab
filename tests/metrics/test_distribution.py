"""Residual sampling on distributions made by hand: right, and with one of two faults."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.distribution import SamplingTally, summarise_tally, tail

VOCABULARY = 12


def peaked(generator: np.random.Generator) -> Tensor:
    return torch.from_numpy(generator.dirichlet([0.5] * VOCABULARY))


def judged(accepted: int) -> RoundRecord:
    """Return a round of one drafted token."""
    return RoundRecord(1, 1, accepted, accepted + 1, *[0.0] * 8)


def draw(generator: np.random.Generator, weights: Tensor) -> int:
    return int(generator.choice(VOCABULARY, p=(weights / weights.sum()).numpy()))


Accept = Callable[[float], float]
Extra = Callable[[Tensor, Tensor], Tensor]


def right_extra(target: Tensor, draft: Tensor) -> Tensor:
    return (target - draft).clamp(min=0)


def sampled(
    places: int, accept: Accept, extra: Extra, rule: str = "residual", seed: int = 0
) -> SamplingTally:
    """Return rounds of one drafted token over random distributions, under a rule."""
    generator, tally, rounds = np.random.default_rng(seed), SamplingTally(rule), []
    tokens, targets, drafts = list[int](), list[Tensor](), list[Tensor]()
    for _ in range(places):
        target, draft, after = (peaked(generator) for _ in range(3))
        token = draw(generator, draft)
        accepted = bool(generator.random() < accept(float(target[token] / draft[token])))
        tokens += (
            [token, draw(generator, after)] if accepted else [draw(generator, extra(target, draft))]
        )
        targets += [target, after][: 1 + accepted]
        drafts += [draft, peaked(generator)][: 1 + accepted]
        rounds.append(judged(int(accepted)))
    tally.add(
        RequestRecord("a", "", [1], tokens, rounds=rounds),
        torch.stack(targets),
        torch.stack(drafts),
    )
    return tally


@pytest.fixture(scope="module")
def right() -> SamplingTally:
    return sampled(1500, lambda ratio: min(1.0, ratio), right_extra)


def test_the_right_rule_is_consistent(right: SamplingTally) -> None:
    summary = summarise_tally(right)
    assert (summary.rule, summary.consistent) == ("residual", True)
    assert summary.acceptance.places == 1500
    assert summary.acceptance.rate == pytest.approx(summary.acceptance.expected_rate, abs=0.03)
    assert min(test.power for test in (summary.softness, summary.tokens)) >= 0.8


def test_an_extra_token_from_the_wrong_distribution_is_noticed() -> None:
    summary = summarise_tally(
        sampled(1500, lambda ratio: min(1.0, ratio), lambda target, _: target)
    )
    assert summary.consistent is False
    assert summary.tokens.p_value < 1e-4


def test_a_softened_acceptance_is_noticed() -> None:
    summary = summarise_tally(sampled(1500, lambda ratio: min(1.0, ratio) ** 0.8, right_extra))
    assert summary.consistent is False
    assert summary.softness.p_value < 1e-4


def test_of_another_rule_tokens_alone_are_tested(right: SamplingTally) -> None:
    summary = summarise_tally(sampled(1500, lambda ratio: min(1.0, ratio), right_extra, "block"))
    assert (summary.rule, summary.consistent) == ("block", True)
    assert (summary.acceptance, summary.softness) == (None, None)
    assert summary.tokens.chi_square == summarise_tally(right).tokens.chi_square
    assert summary.tokens.power >= 0.8
    drafts = summarise_tally(sampled(1500, lambda _: 1.0, right_extra, "block"))
    assert drafts.consistent is False
    assert (
        summarise_tally(sampled(20, lambda ratio: min(1.0, ratio), right_extra, "block")).consistent
        is None
    )


def test_a_right_rule_seems_wrong_as_often_as_a_p_value_says() -> None:
    """A twentieth of 100 right tallies has one below .05; none, or more than 11, are the chance of one in 100."""
    tallies = [
        sampled(40, lambda ratio: min(1.0, ratio), right_extra, "block", seed)
        for seed in range(100)
    ]
    assert 1 <= sum(summarise_tally(tally).tokens.p_value < 0.05 for tally in tallies) <= 11


def test_too_few_tokens_decide_nothing() -> None:
    assert summarise_tally(SamplingTally()).consistent is None
    assert (
        summarise_tally(sampled(20, lambda ratio: min(1.0, ratio), right_extra)).consistent is None
    )


def test_one_place_by_hand() -> None:
    """p = (.5, .3, .2), q = (.2, .2, .6): 1 - total variation is .6; the drafted token 2 was rejected for token 0."""
    tally, target, draft = (
        SamplingTally(),
        torch.tensor([[0.5, 0.3, 0.2]]),
        torch.tensor([[0.2, 0.2, 0.6]]),
    )
    tally.add(RequestRecord("a", "", [1], [0], rounds=[judged(0)]), target, draft)
    assert (tally.judged, tally.tokens, tally.accepted) == (1, 1, 0)
    assert tally.expected == pytest.approx(0.6)
    assert tally.variance == pytest.approx(0.24)
    assert tally.softened == pytest.approx(0.6 * (1 / 3) ** 0.8 - 0.2)
    assert tally.surplus.tolist() == pytest.approx([-0.2, 0, -0.3, 0.5])
    assert tally.unmended.tolist() == pytest.approx([0.08, 0, 0.12 - 0.1, 0.2 - 0.3])


def test_the_tail_of_a_chi_square() -> None:
    for degrees in (1, 2, 3):
        assert tail(7.5, degrees) == pytest.approx(chi2.sf(7.5, degrees))
