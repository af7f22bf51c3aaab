"""The law of a mixture whose experts are spread over cards: exchanges over the interconnect, and uneven loads."""

from dataclasses import replace
from random import Random

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import RoundedModel, Row, sums_of
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import Interconnect, find_device, find_interconnect
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.settings import VerifierProfileSettings
from specbench_kit.profilers.software import KERNELS, AchievedSpeed, Software, find_software

SHAPES = bundled_architectures()["qwen3-30b-a3b"]
IDEAL = Software("x", "x", "", anywhere=AchievedSpeed())
NVLINK = find_interconnect("nvlink4")


def roofline(cards: int) -> Roofline:
    return Roofline(find_device("h100").combined(cards), SHAPES, "bfloat16")


def spread(cards: int, software: Software = IDEAL, over: Interconnect = NVLINK) -> RoundedModel:
    return roofline(cards).estimate(software, cards, over, expert_parallel=True)


def test_one_card_has_nothing_to_exchange() -> None:
    assert spread(1) == roofline(1).estimate(IDEAL)


def test_tokens_cross_once_to_every_card_with_one_of_their_experts() -> None:
    """A token of two experts needs the other one of two cards with 3/4; half of the tokens are on either."""
    over = Interconnect("w", "W", 2.0, 7.0, 1.0, 14.0)
    assert over.exchange_per_byte_s(2, 2) == pytest.approx(2 * 0.75 / 2 / 2.0)
    assert over.exchange_per_byte_s(1, 8) == 0
    hidden_bytes = 2 * SHAPES.hidden_size
    per_byte_s = over.per_byte_s(4) + over.exchange_per_byte_s(4, SHAPES.active_experts)
    model = roofline(4).estimate(IDEAL, 4, over, expert_parallel=True)
    assert model.reduced_s == pytest.approx(SHAPES.layers * hidden_bytes * per_byte_s)
    # One all-reduce after the attention, and two exchanges around the experts.
    assert model.forward_s == pytest.approx(SHAPES.layers * 3 * 7.0)


def test_a_token_sends_no_more_than_an_all_reduce_would() -> None:
    for members in (2, 4, 8, 64):
        for experts in (1, 2, 8):
            assert 0 < NVLINK.exchange_per_byte_s(members, experts) <= NVLINK.per_byte_s(members)


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_nothing_undercuts_the_limit_of_the_cards_and_more_work_takes_longer(cards: int) -> None:
    model, limit = spread(cards, find_software(KERNELS)), roofline(cards)
    grids: list[list[list[Row]]] = [
        [[(1, 512)] * requests for requests in range(1, 200)],
        [[(new, 512)] * 4 for new in range(1, 300)],
        [[(5, context)] * 4 for context in range(1, 9000, 64)],
    ]
    for grid in grids:
        seconds = [model.seconds(rows) for rows in grid]
        assert seconds == sorted(seconds)
        assert all(took_s > limit.floor_s(rows) for took_s, rows in zip(seconds, grid, strict=True))


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_the_card_with_the_most_experts_to_read_decides(cards: int) -> None:
    """Against draws: the largest number of experts of any card that a few tokens hit, times the cards."""
    model, random = spread(cards), Random(0)
    even = replace(model, uneven=0.0)
    for tokens in (1, 4, 16, 64):
        draws = []
        for _ in range(400):
            hit = {
                expert for _ in range(tokens) for expert in random.sample(range(SHAPES.experts), 8)
            }
            draws.append(
                max(sum(expert % cards == card for expert in hit) for card in range(cards))
            )
        drawn = cards * sum(draws) / len(draws) / SHAPES.experts
        sums = sums_of([(1, 0)] * tokens)
        dense_s = even.weights_s + even.kv_s * tokens
        assert (model.traffic_s(sums) - dense_s) / model.experts_s == pytest.approx(drawn, rel=0.2)
        assert even.traffic_s(sums) <= model.traffic_s(sums) <= dense_s + model.experts_s


def test_many_tokens_need_all_experts_so_that_cards_are_even() -> None:
    model, sums = spread(4), sums_of([(1, 512)] * 512)
    assert model.traffic_s(sums) == pytest.approx(
        replace(model, uneven=0.0).traffic_s(sums), rel=1e-6
    )


def test_a_slower_interconnect_takes_longer() -> None:
    rows = [(5, 512)] * 32
    assert spread(4, over=NVLINK.slow).seconds(rows) > spread(4).seconds(rows)


def test_experts_that_cannot_be_shared_are_refused_in_one_line() -> None:
    with pytest.raises(SkitError, match="qwen3-32b has no experts, which 4 cards cannot share"):
        bundled_architectures()["qwen3-32b"].require_shared_experts(4, "qwen3-32b")
    with pytest.raises(SkitError, match="has 128 experts, which 3 cards cannot share evenly"):
        SHAPES.require_shared_experts(3, "qwen3-30b-a3b")
    with pytest.raises(SkitError, match="--expert-parallel needs several --cards"):
        VerifierProfileSettings(target="qwen3-30b-a3b", gpu="h100", expert_parallel=True)
