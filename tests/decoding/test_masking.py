"""Logits under a grammar: only what is allowed is drafted, and statistics are those of what is left."""

import numpy as np
import pytest
import torch

from specbench_kit.decoding.constraint import Allowed
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.masking import masked
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.base import Forward

LOGITS = torch.tensor([[4.0, 1.0, 3.0, 2.0, 0.0], [0.0, 2.0, 1.0, 5.0, -1.0]])


def only(*tokens: int, size: int = 5) -> Allowed:
    allowed = np.zeros(size, np.bool_)
    allowed[list(tokens)] = True
    return allowed


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_statistics_are_of_the_allowed_tokens(temperature: float) -> None:
    sampler = Sampler(temperature)
    forward = masked(Forward([LOGITS]), [[only(1, 3), None]])
    own = DraftForward(forward, sampler)
    left = (LOGITS[0, [1, 3]] / (temperature or 1)).softmax(-1)
    expected = torch.zeros(5).index_copy(0, torch.tensor([1, 3]), left)
    assert torch.allclose(own.probabilities[0], expected)
    stats = own.stats(0, 1)
    assert stats.confidence == pytest.approx(float(left[1]))
    assert stats.margin == pytest.approx(float(left[1] - left[0]))
    assert stats.entropy == pytest.approx(float(torch.special.entr(left).sum()), abs=1e-6)
    assert stats.logit_std == pytest.approx(float(LOGITS[0].std(correction=0)))
    assert stats.probability == pytest.approx(float(left[0]))
    assert own.stats(1, 0) == DraftForward(Forward([LOGITS]), sampler).stats(1, 0)


def test_only_allowed_tokens_are_found() -> None:
    own = DraftForward(masked(Forward([LOGITS]), [[only(1, 3), only(2)]]), Sampler())
    assert own.best_tokens() == [3, 2]
    assert own.top_tokens(4) == [[3, 1], [2]]
    found = own.likeliest([0, 1], [0.0, 0.0], 4, 8)
    assert {(row, token) for _, row, token in found} == {(0, 3), (0, 1), (1, 2)}


def test_a_grammar_may_know_more_or_fewer_tokens_than_the_model() -> None:
    few, many = (masked(Forward([LOGITS[:1]]), [[only(1, size=size)]]) for size in (3, 9))
    for forward in (few, many):
        assert forward.logits.isinf().tolist() == [[True, False, True, True, True]]


def test_a_model_that_knows_no_allowed_token_drafts_as_it_would() -> None:
    forward = masked(Forward([LOGITS[:1]]), [[only(7, size=9)]])
    assert forward.argmax() == [[0]]
    assert torch.equal(forward.logits, LOGITS[:1])


def test_without_a_grammar_a_forward_is_left_alone() -> None:
    forward = Forward([LOGITS])
    assert masked(forward, [[None, None]]) is forward


def test_no_number_hides_behind_a_mask() -> None:
    broken = LOGITS.clone()
    broken[0, 0] = torch.nan
    assert masked(Forward([broken]), [[only(1), only(1)]]).is_nan()
