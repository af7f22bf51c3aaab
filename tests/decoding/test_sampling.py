"""Logits to tokens, against the processors of transformers, and generators that depend on the request alone."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.core.temperature import LEAST_TEMPERATURE
from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw


def random_logits(rows: int = 7, vocabulary: int = 40) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    list(product([0.2, 1.0, 1.7], [0, 1, 5, 40, 500], [1.0, 0.95, 0.5, 1e-6])),
)
def test_processors_equal_those_of_transformers(
    temperature: float, top_k: int, top_p: float
) -> None:
    chain = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    logits = random_logits()
    expected = chain(torch.zeros((len(logits), 1), dtype=torch.long), logits.clone()).softmax(-1)
    ours = Sampler(temperature, top_p, top_k).probabilities(logits)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(ours > 0, expected > 0)


def test_greedy_leaves_the_distribution_as_it_is() -> None:
    """Top-k and top-p belong to sampling; statistics of a greedy draft are those of the model."""
    logits = random_logits()
    sampler = Sampler(temperature=0.0, top_p=0.5, top_k=3)
    assert sampler.greedy
    torch.testing.assert_close(sampler.probabilities(logits), logits.softmax(-1))


@pytest.mark.parametrize(
    ("top_k", "most", "expected"),
    [(0, 0, 0), (5, 0, 5), (0, 8, 8), (5, 8, 5), (8, 5, 5), (5, 5, 5)],
)
def test_of_the_likeliest_there_are_no_more_than_either_bound_allows(
    top_k: int, most: int, expected: int
) -> None:
    assert Sampler(0.7, 0.9, top_k).of_likeliest(most) == Sampler(0.7, 0.9, expected)


def test_half_precision_logits_are_processed_in_float32() -> None:
    probabilities = Sampler(0.7, 0.9, 8).probabilities(random_logits().to(torch.bfloat16))
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(7))


def test_draw_inverts_the_cumulative_distribution() -> None:
    row = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    numbers = [0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 0.999999, 1 - 2**-53]
    assert draw(row.expand(len(numbers), -1), numbers) == [1, 1, 3, 3, 3, 4, 4, 4]


def test_draw_takes_rows_that_do_not_sum_to_one() -> None:
    rows = torch.tensor([[0.0, 1e-7, 3e-7], [0.0, 20.0, 60.0], [0.0, 0.0, 1e-30]])
    assert draw(rows, [0.24, 0.26, 0.999999]) == [1, 2, 2]


def test_draw_never_gives_an_impossible_token() -> None:
    probabilities = Sampler(1.0, 0.6, 7).probabilities(random_logits(200, 30))
    for number in (0.0, 0.3, 1 - 2**-53):
        tokens = draw(probabilities, [number] * 200)
        assert (probabilities[range(200), tokens] > 0).all()


def test_draws_follow_the_distribution() -> None:
    probabilities = Sampler(1.0).probabilities(random_logits(1, 12) / 2)[0]
    random = RequestRandom(3, "request")
    tokens = draw(
        probabilities.expand(20_000, -1), [random.uniform("target") for _ in range(20_000)]
    )
    counts = np.bincount(tokens, minlength=12)
    expected = probabilities.double().numpy()
    assert chisquare(counts, expected / expected.sum() * 20_000).pvalue > 1e-3


def test_streams_are_uniform_and_differ_by_seed_request_and_purpose() -> None:
    streams = {
        (seed, name, purpose): [random.uniform(purpose) for _ in range(500)]
        for seed in (0, 1)
        for name in ("a", "b")
        for random in [RequestRandom(seed, name)]
        for purpose in ("draft", "accept", "target")
    }
    assert len({tuple(stream) for stream in streams.values()}) == 12
    assert np.abs(np.corrcoef(list(streams.values())) - np.eye(12)).max() < 0.2
    numbers = np.concatenate(list(streams.values()))
    assert kstest(numbers, "uniform").pvalue > 1e-3
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_a_stream_does_not_depend_on_the_others() -> None:
    alone, mixed = RequestRandom(5, "a"), RequestRandom(5, "a")
    expected = [alone.uniform("accept") for _ in range(20)]
    drawn = []
    for _ in range(20):
        mixed.uniform("draft")
        drawn.append(mixed.uniform("accept"))
        mixed.uniform("target")
    assert drawn == expected


def test_the_least_temperature_is_as_good_as_greedy_and_less_is_refused() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0)) * 40
    coldest = Sampler(LEAST_TEMPERATURE, top_p=0.9, top_k=20).probabilities(logits)
    assert torch.equal(coldest.argmax(-1), logits.argmax(-1))
    assert torch.allclose(coldest.amax(-1), torch.ones(50))
    for temperature in (1e-300, 5e-324, LEAST_TEMPERATURE / 2, -1.0, float("nan"), float("inf")):
        with pytest.raises(SkitError, match="temperature"):
            Sampler(temperature)
