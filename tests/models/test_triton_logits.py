"""What Triton's kernels say of logits, interpreted on the CPU, beside torch's operations and exact numbers.

They are skipped where Triton is not installed, which torch brings with its builds for GPUs alone.
"""

from math import inf, nan

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from interpreted_kernels import mend

from specbench_kit.models.executors.kernels import operators, triton_logits
from specbench_kit.models.executors.kernels.description import (
    FIELDS,
    NAN,
    NEXT,
    OWN,
    STATISTICS,
    Details,
    describe,
)

ROUNDING = 2e-6
"""The accepted relative difference of a statistic from exact numbers."""


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mend(monkeypatch)


def described(logits: Tensor, tokens: Tensor, temperature: float, *, statistics: bool) -> Tensor:
    found = triton_logits.summarise(logits, temperature)
    fields, best = triton_logits.join_summaries(
        found, tokens, logits.shape[-1], temperature, statistics
    )
    assert torch.equal(best.double(), fields[..., NEXT])
    return fields


def exactly(logits: Tensor, temperature: float) -> Tensor:
    """The statistics in fp64."""
    logits = logits.double()
    probabilities = (logits / temperature).softmax(-1)
    best = probabilities.topk(2).values
    entropy = torch.special.entr(probabilities).sum(-1)
    spread = logits.std(-1, correction=0)
    return torch.stack((best[..., 0], entropy, best[..., 0] - best[..., 1], spread), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [2, 100, triton_logits.CHUNK, 2 * triton_logits.CHUNK + 1])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_fields(dtype: torch.dtype, vocabulary: int, temperature: float) -> None:
    """Of logits whose rows are a part of a longer vocabulary."""
    padded = 5 * torch.randn((2, 3, vocabulary + 5), generator=torch.Generator().manual_seed(1))
    padded[..., vocabulary:] = 100
    logits = padded.to(dtype)[..., :vocabulary]
    tokens = torch.tensor([[5, 6, 7], [151_935, 0, 1]])
    fields = described(logits, tokens, temperature, statistics=True)
    assert fields.shape == (2, 3, FIELDS + STATISTICS)
    assert torch.equal(fields[..., NEXT], logits.argmax(-1).double())
    assert not fields[..., NAN].any()
    assert torch.equal(fields[..., OWN], tokens.double())
    exact = exactly(logits, temperature)
    torch.testing.assert_close(fields[..., FIELDS:], exact, rtol=ROUNDING, atol=ROUNDING)
    few = described(logits, tokens, 1.0, statistics=False)
    assert torch.equal(few, fields[..., :FIELDS])
    assert torch.equal(few, describe(logits, tokens, Details()).fields)


def test_equal_logits_and_forbidden_ones() -> None:
    """The first of equal logits is the next token, as torch says, also where they lie in different chunks."""
    logits = torch.full((4, 2 * triton_logits.CHUNK), -inf)
    logits[0, 7] = 1.0
    logits[1, [3, triton_logits.CHUNK + 3]] = 1.0
    logits[2, triton_logits.CHUNK :] = 0.0
    logits[3, [9, 11]] = torch.tensor([2.0, 1.0])
    tokens = torch.arange(4)
    fields = described(logits, tokens, 1.0, statistics=True)
    assert fields[:, NEXT].tolist() == [7, 3, triton_logits.CHUNK, 9]
    exact = exactly(logits, 1.0)
    assert exact[:, 3].isnan().all(), "a spread of forbidden logits is none, as torch says"
    assert fields[:, -1].isnan().all()
    torch.testing.assert_close(fields[:, FIELDS:-1], exact[:, :3], rtol=ROUNDING, atol=ROUNDING)


def test_a_missing_number_is_said() -> None:
    logits = torch.randn((3, triton_logits.CHUNK + 9))
    logits[0, 5] = logits[2, -1] = nan
    fields = described(logits, torch.zeros(3, dtype=torch.int64), 1.0, statistics=True)
    assert fields[:, NAN].tolist() == [1, 0, 1]
    assert fields[[0, 2], FIELDS:].isnan().all()
    assert not fields[1].isnan().any()


def test_what_operators_say_without_a_gpu_is_what_the_kernels_say() -> None:
    logits = 3 * torch.randn((5, 700), generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(5)
    fields = described(logits, tokens, 0.7, statistics=True)
    for details in (Details(), Details(0.7), Details(0.7, candidates=True)):
        by_operators = operators.describe_fused(logits, tokens, details).fields
        shared = min(fields.shape[-1], by_operators.shape[-1])
        torch.testing.assert_close(
            by_operators[:, :shared], fields[:, :shared], rtol=ROUNDING, atol=ROUNDING
        )
