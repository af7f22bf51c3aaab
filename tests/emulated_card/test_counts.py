"""What the emulated card counts, and where."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from emulated_card import Machine, emulated_cards
from emulated_card.counts import Counts


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


def counted(machine: Machine, work: Callable[[Tensor], object]) -> Counts:
    numbers = torch.arange(4.0, device="cuda")
    with machine.counts.during() as counts:
        work(numbers)
    return counts


@pytest.mark.parametrize(
    ("work", "launches"),
    [
        (lambda x: x + 1, 1),
        (lambda x: x.mul_(2).add_(1), 2),
        (lambda x: x.view(2, 2)[0].t(), 0),
        (lambda x: torch.empty_like(x), 0),
        (lambda x: torch.zeros(3, device=x.device), 1),
        (lambda x: x.to(torch.bfloat16), 1),
        (lambda x: x.to("cuda:0"), 0),
        (lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 2, 2)] * 3), 1),
    ],
)
def test_launches(machine: Machine, work: Callable[[Tensor], object], launches: int) -> None:
    counts = counted(machine, work)
    assert (counts.launches, counts.waits, counts.copies_to_card) == (launches, 0, 0)


def test_copies_that_look_like_views_in_inference_mode(machine: Machine) -> None:
    with torch.inference_mode():
        counts = counted(
            machine, lambda x: (x.view(2, 2).t().reshape(4), x.to(torch.float64), x.reshape(2, 2))
        )
    assert counts.launches == 2, "the last one is a view"


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: float(x[0]),
        lambda x: int(x[0]),
        lambda x: bool(x[0]),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: torch.equal(x, x),
        lambda x: torch.empty(4).copy_(x),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_waits(
    machine: Machine, read: Callable[[Tensor], object], mode: Callable[[], AbstractContextManager]
) -> None:
    with mode():
        counts = counted(machine, read)
    assert counts.waits == 1
    assert counts.synchronisations == counts.copies_to_card == 0


@pytest.mark.parametrize(
    ("write", "copies"),
    [
        (lambda _: torch.tensor([1, 2], device="cuda"), 1),
        (lambda _: torch.ones(3).to("cuda"), 1),
        (lambda x: x.copy_(torch.ones(4)), 1),
        (lambda x: x[[0, 1]], 1),
        (lambda x: x[torch.tensor([2])], 1),
        (lambda x: x.__setitem__(slice(0, 2), torch.ones(2)), 1),
        (lambda x: x.__setitem__(0, 3.0), 0),
    ],
)
def test_copies_to_the_card(
    machine: Machine, write: Callable[[Tensor], object], copies: int
) -> None:
    counts = counted(machine, write)
    assert (counts.copies_to_card, counts.waits) == (copies, 0)


def test_synchronisations_and_copies_between_cards(machine: Machine) -> None:
    counts = counted(
        machine, lambda x: (torch.cuda.synchronize(), x.to("cuda:1"), torch.cuda.synchronize(1))
    )
    assert counts.synchronisations == 2
    assert counts.total("copy between cards") == 1
    assert counts.waits == 0


def test_places_are_those_of_the_kit(machine: Machine) -> None:
    from specbench_kit.models.runner import refuse_nan_in

    counts = counted(machine, lambda x: (refuse_nan_in(x), x.tolist()))
    kit, test = sorted(counts.places("wait"), key=lambda place: place.startswith("test_"))
    assert kit.startswith("models/runner.py:")
    assert test.startswith("test_counts.py:")
