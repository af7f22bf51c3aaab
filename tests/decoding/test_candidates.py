"""The quick way to the best children against sorting every row."""

import pytest
import torch
from tiny_models import tiny_llama

from specbench_kit.decoding.distributions import DraftForward, _by_bound, _by_rows, likeliest
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.base import Row, make_executor
from specbench_kit.models.executors.library import load_library


@pytest.mark.parametrize("vocabulary", [5, 64, 128, 1000, 1024])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_looking_for_a_bound_finds_what_sorting_finds(rows: int, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    for branch, count in ((1, 1), (2, 9), (5, 3), (16, 32), (200, 40)):
        logits = torch.randn(rows, vocabulary, generator=generator) * 4
        bases = (-3 * torch.rand(rows, generator=generator)).tolist()
        arguments = (
            logits.softmax(-1),
            bases,
            min(branch, vocabulary),
            min(count, rows * min(branch, vocabulary)),
        )
        quick, plain = _by_bound(*arguments), _by_rows(*arguments)
        assert [candidate[1:] for candidate in quick] == [candidate[1:] for candidate in plain]
        assert [candidate[0] for candidate in quick] == pytest.approx(
            [candidate[0] for candidate in plain]
        )
        assert likeliest(logits.softmax(-1), bases, branch, count) == quick


def test_what_has_no_probability_is_no_candidate() -> None:
    """Under a grammar that leaves one token, thousands of others would be sorted for nothing."""
    forced = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    found = likeliest(forced, [0.0, -9.0], 3, 6)
    assert [candidate[1:] for candidate in found] == [(0, 0), (1, 2)]


def test_no_row_gives_more_than_its_branch() -> None:
    sure = torch.tensor([[0.5, 0.4, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert [candidate[1:] for candidate in likeliest(sure, [0.0, -9.0], 2, 3)] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]


@pytest.mark.parametrize("vocabulary", [5, 64, 1000])
def test_the_native_executor_finds_the_same(vocabulary: int) -> None:
    if load_library() is None:
        pytest.skip("not compiled here")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 16}
    executor = make_executor(
        tiny_llama(0, vocab_size=vocabulary + 7, **sizes), 1, 40, vocabulary, "native"
    )
    generator = torch.Generator().manual_seed(vocabulary)
    for rows, branch, count in ((1, 1, 1), (4, 2, 9), (4, 5, 3), (32, 16, 32)):
        forward = executor.forward([Row(0, [0] * (rows + 2), 0, 0, None, rows + 2)])
        forward.logits.copy_(torch.randn(forward.logits.shape, generator=generator) * 4)
        bases = (-3 * torch.rand(rows, generator=generator)).tolist()
        kept_rows = list(range(rows + 2))[::-1][:rows]
        draft = DraftForward(forward, Sampler(temperature=0.8))
        quick = draft.likeliest(kept_rows, bases, branch, count)
        above = draft.likeliest(kept_rows, bases, branch, count, quick[len(quick) // 2][0])
        assert above == quick[: len(quick) // 2]
        forward.candidates = None
        plain = draft.likeliest(kept_rows, bases, branch, count)
        assert [candidate[1:] for candidate in quick] == [candidate[1:] for candidate in plain]
        assert [candidate[0] for candidate in quick] == pytest.approx(
            [candidate[0] for candidate in plain], abs=1e-4
        )
