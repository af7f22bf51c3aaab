"""Which kernels a device gets, and that fused ones are operators of torch with the same results."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench_kit.models.executors.kernels import choice
from specbench_kit.models.executors.kernels.base import Gate, LayerSizes
from specbench_kit.models.executors.kernels.by_torch import TORCH
from specbench_kit.models.executors.kernels.operators import FUSED

SIZES = LayerSizes(64, 96, 4, 2, 16, True)
CARD = torch.device("cuda", 0)


@pytest.fixture
def _without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try kernels of a card on the CPU, and forget what was chosen."""
    monkeypatch.setattr(choice, "choose", choice.choose.__wrapped__)
    monkeypatch.setattr(choice, "missing", lambda: "")
    compared = choice.largest_difference
    monkeypatch.setattr(
        choice,
        "largest_difference",
        lambda kernels, _, *others: compared(kernels, torch.device("cpu"), *others),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_head_norms", [False, True])
def test_operators_compute_what_torch_does_where_there_is_no_gpu(
    dtype: torch.dtype, has_head_norms: bool
) -> None:
    sizes = SIZES._replace(has_head_norms=has_head_norms)
    assert choice.largest_difference(FUSED, torch.device("cpu"), dtype, sizes) == 0


def test_a_cpu_gets_torchs_operations() -> None:
    kernels, reason = choice.choose(torch.device("cpu"), torch.float32, SIZES)
    assert kernels is TORCH
    assert reason == "the device is no GPU"


@pytest.mark.usefixtures("_without_a_card")
def test_a_card_without_triton_gets_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "missing", lambda: "Triton is not installed")
    assert choice.choose(CARD, torch.float32, SIZES) == (TORCH, "Triton is not installed")


@pytest.mark.usefixtures("_without_a_card")
def test_a_card_gets_fused_kernels_that_agree() -> None:
    assert choice.choose(CARD, torch.bfloat16, SIZES) == (FUSED, "")


def wrong(gates: Tensor) -> Tensor:
    result = TORCH.gate(gates)
    result[..., -1] *= 1.2
    return result


def not_a_number(gates: Tensor) -> Tensor:
    return TORCH.gate(gates) * torch.nan


def broken(_: Tensor) -> Tensor:
    raise RuntimeError("PTX was compiled with an unsupported toolchain\nand more")


@pytest.mark.usefixtures("_without_a_card")
@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (wrong, "Triton's kernels differ from torch's operations by"),
        (not_a_number, "Triton's kernels differ from torch's operations by inf"),
        (broken, "Triton's kernels fail: PTX was compiled with an unsupported toolchain"),
    ],
)
def test_kernels_that_fail_on_a_card_are_left_out_with_a_warning(
    gate: Gate,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(choice, "FUSED", replace(FUSED, gate=gate))
    with caplog.at_level(logging.WARNING):
        kernels, said = choice.choose(CARD, torch.bfloat16, SIZES)
    assert kernels is TORCH
    assert said.startswith(reason)
    assert f"TORCH'S KERNELS ON cuda:0: {said}" in caplog.text
