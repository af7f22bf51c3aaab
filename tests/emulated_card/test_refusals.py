"""What a GPU refuses, the emulated card refuses too, with the line that did it."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emulated_card import Machine, emulated_cards

HERE = r"test_refusals\.py:\d+"


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


def on(card: str = "cuda:0", *shape: int) -> Tensor:
    return torch.arange(6.0, device=card).view(*(shape or (2, 3)))


@pytest.mark.parametrize(
    "operation",
    [
        lambda: on() + torch.ones(3),
        lambda: torch.ones(2, 3) * on(),
        lambda: on() + on("cuda:1"),
        lambda: torch.cat([on(), torch.ones(2, 3)]),
        lambda: torch.stack([on("cuda:1"), on("cuda:0")]),
        lambda: on() @ torch.ones(3, 2),
        lambda: nn.Linear(3, 2)(on()),
        lambda: on().masked_fill_(torch.ones(2, 3, dtype=torch.bool), 0),
        lambda: torch.ones(2, 3)[on().long()[0, :2]],
        lambda: on()[on("cuda:1").long()[0, :2]],
        lambda: on().index_put_((torch.tensor([0]),), torch.ones(1, 3)),
        lambda: on().scatter_(1, torch.zeros(2, 3, dtype=torch.long), 1.0),
        lambda: torch.where(on() > 1, on(), torch.zeros(2, 3)),
        lambda: nn.functional.embedding(torch.tensor([0]), on()),
    ],
)
def test_operands_on_two_devices(operation: Callable[[], object]) -> None:
    with pytest.raises(
        RuntimeError, match=f"at least two devices, c.* and cuda:[01]: .* at {HERE}"
    ):
        operation()


@pytest.mark.parametrize(
    "operation", [lambda: on().numpy(), lambda: np.asarray(on()), lambda: on()[0].numpy()]
)
def test_numpy_of_a_device_tensor(operation: Callable[[], object]) -> None:
    with pytest.raises(
        TypeError, match=f"can't convert cuda:0 device type tensor to numpy.*{HERE}"
    ):
        operation()


def test_a_generator_of_the_host_and_a_card_that_is_not_there() -> None:
    with pytest.raises(
        RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"
    ):
        torch.rand(3, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:2"):
        torch.zeros(1, device="cuda:2")
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        on().pin_memory()


@pytest.mark.parametrize(
    "wait",
    [
        lambda: on().sum().item(),
        lambda: on().tolist(),
        lambda: on().cpu(),
        lambda: float(on()[0, 0]),
        lambda: on()[on() > 1],
        lambda: on().nonzero(),
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.current_stream().synchronize(),
        lambda: torch.ones(3).cuda(),
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: on()[[0, 1]],
    ],
)
def test_a_wait_or_a_copy_of_the_host_inside_a_capture(wait: Callable[[], object]) -> None:
    with (
        pytest.raises(RuntimeError, match=f"not permitted when stream is capturing: .* at {HERE}"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        wait()


def test_what_mixes_on_a_gpu_mixes_here() -> None:
    numbers = on()
    assert (numbers + torch.tensor(1.0)).device == torch.device("cuda:0"), "one number of the host"
    assert numbers[torch.tensor([1])].tolist() == [[3.0, 4.0, 5.0]], "an index of the host"
    numbers[0] = torch.tensor([7.0, 8.0, 9.0])
    assert numbers.to("cuda:1").cpu().tolist() == [[7.0, 8.0, 9.0], [3.0, 4.0, 5.0]]
    assert on("cuda").device == on("cuda:0").device
    with torch.cuda.device(1):
        assert on("cuda").device == torch.device("cuda", 1)


def test_gradients_on_a_card_are_those_of_the_host() -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(3, 2), torch.randn(5, 3)
    expected = torch.autograd.grad(layer(inputs).square().sum(), list(layer.parameters()))
    layer.to("cuda")
    layer(inputs.cuda()).square().sum().backward()
    for weight, gradient in zip(layer.parameters(), expected, strict=True):
        assert weight.grad is not None
        assert weight.grad.device == weight.device == torch.device("cuda:0")
        assert weight.grad.cpu().equal(gradient)
