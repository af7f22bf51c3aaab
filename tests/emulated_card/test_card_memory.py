"""Memory of the emulated cards: what is allocated, the most that was, and its limit."""

import copy
import gc

import pytest
import torch

from emulated_card import emulated_cards

MIB = 2**20


def test_bytes_follow_tensors_and_their_views() -> None:
    with emulated_cards(2) as machine:
        first, second = machine.cards
        tensor = torch.zeros(MIB // 4, device="cuda")
        view = tensor[:10].view(2, 5)
        assert first.allocated_bytes == MIB
        del tensor
        assert first.allocated_bytes == MIB, "the view is still there"
        moved = view.to("cuda:1")
        del view
        assert (first.allocated_bytes, second.allocated_bytes) == (0, 512)
        assert torch.cuda.max_memory_allocated() == first.peak_bytes == MIB
        torch.cuda.reset_peak_memory_stats()
        assert first.peak_bytes == 0
        twice = copy.deepcopy(moved)
        assert second.allocated_bytes == 1024
        del moved, twice
        assert second.allocated_bytes == 0


def test_a_training_step_gives_back_all_but_weights_and_their_gradients() -> None:
    with emulated_cards(1) as machine:
        layer = torch.nn.Linear(128, 128, bias=False, device="cuda")
        weights = machine.cards[0].allocated_bytes
        for _ in range(3):
            layer.zero_grad()
            layer(torch.randn(4, 128, device="cuda")).relu().sum().backward()
        gc.collect()
        assert weights == 128 * 128 * 4
        assert machine.cards[0].allocated_bytes == 2 * weights


def test_more_than_the_limit_is_out_of_memory_and_leaves_the_card_as_it_was() -> None:
    with emulated_cards(1, memory_bytes=4 * MIB) as machine:
        tensor = torch.zeros(3 * MIB // 4, device="cuda")
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 2\.00 MiB\. .* 1\.00 MiB is free"
        ):
            torch.zeros(2 * MIB // 4, device="cuda")
        assert machine.cards[0].allocated_bytes == 3 * MIB
        assert torch.cuda.mem_get_info() == (MIB, 4 * MIB)
        del tensor
        assert torch.zeros(3 * MIB // 4, device="cuda").sum().item() == 0
