"""Streams, events, copies that arrive later, and graphs that are captured and replayed."""

from collections.abc import Iterator

import pytest
import torch

from emulated_card import Machine, emulated_cards


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


def test_a_copy_to_pinned_memory_has_arrived_when_it_was_waited_for(machine: Machine) -> None:
    result, host = torch.arange(3.0, device="cuda"), torch.empty(3, pin_memory=True)
    arrived = torch.cuda.Event()
    host.copy_(result, non_blocking=True)
    arrived.record()
    result.zero_()
    assert host.isnan().all(), "read too early"
    arrived.synchronize()
    assert host.tolist() == [0.0, 1.0, 2.0]
    assert machine.counts.waits == 0
    assert machine.counts.synchronisations == machine.counts.total("copy to host") == 1
    torch.empty(3).copy_(result, non_blocking=True)
    assert machine.counts.waits == 1, "without pinned memory the host waits"


def test_pinned_memory_may_not_change_while_it_is_copied() -> None:
    host = torch.ones(3).pin_memory()
    host.to("cuda", non_blocking=True)
    host += 1
    with pytest.raises(RuntimeError, match="pinned memory was changed while the copy"):
        torch.cuda.synchronize()


def test_a_stream_uses_what_another_wrote_only_after_waiting_for_it() -> None:
    side, numbers = torch.cuda.Stream(), torch.zeros(3, device="cuda")
    with (
        torch.cuda.stream(side),
        pytest.raises(RuntimeError, match="used before it was written on another stream"),
    ):
        numbers.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = numbers * 2
    with pytest.raises(RuntimeError, match="overwritten while it is read on another stream"):
        numbers.add_(1)
    side.record_event().wait()
    assert (doubled + numbers.add_(1)).tolist() == [1.0, 1.0, 1.0]


def test_times_of_events_can_be_read_when_they_have_happened() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match="device not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_a_graph_is_not_run_by_its_capture_and_replays_on_the_same_memory(machine: Machine) -> None:
    inputs, total = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    assert not torch.accelerator.current_stream().is_capturing()
    with machine.counts.during() as counts, torch.cuda.graph(graph):
        assert torch.accelerator.current_stream().is_capturing()
        total.add_(inputs * 2)
        result = total.view(1, 3).cumsum(1)
    assert counts.launches == 0
    assert total.tolist() == [0.0, 0.0, 0.0]
    assert result.isnan().all()
    for step in (1, 2):
        with machine.counts.during() as counts:
            graph.replay()
        assert (counts.replays, counts.launches, counts.waits) == (1, 0, 0)
        assert result.tolist() == [[2.0 * step, 4.0 * step, 6.0 * step]]
    inputs.zero_()
    graph.replay()
    assert total.tolist() == [4.0, 4.0, 4.0], "a graph reads its inputs anew"


def test_a_graph_that_copies_from_and_to_pinned_memory() -> None:
    source, target = torch.ones(2).pin_memory(), torch.zeros(2).pin_memory()
    numbers, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        numbers.copy_(source, non_blocking=True)
        target.copy_(numbers + 1, non_blocking=True)
    source.fill_(5)
    graph.replay()
    assert target.isnan().all()
    torch.cuda.synchronize()
    assert target.tolist() == [6.0, 6.0]


def test_a_graph_needs_the_memory_that_it_was_captured_with() -> None:
    inputs, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="never captured"):
        graph.replay()
    with torch.cuda.graph(graph):
        doubled = inputs * 2
    graph.replay()
    assert doubled.tolist() == [2.0, 2.0, 2.0]
    del inputs
    with pytest.raises(RuntimeError, match="a graph uses memory of cuda:0 that was freed"):
        graph.replay()


def test_temporary_memory_belongs_to_the_graph_until_it_goes(machine: Machine) -> None:
    card, inputs = machine.cards[0], torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (inputs + 1).sum()
    assert card.allocated_bytes == 2 * 4096 + 512
    graph.replay()
    assert result.item() == 2048
    assert card.allocated_bytes == 2 * 4096 + 512
    graph.reset()
    assert card.allocated_bytes == 4096 + 512


def test_threads_that_start_inside_have_the_cards_too() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        tensor = threads.submit(lambda: torch.ones(2).to("cuda")).result()
    assert tensor.device == torch.device("cuda:0")
    with pytest.raises((AssertionError, RuntimeError)), emulated_cards(1):
        raise AssertionError
    assert torch.cuda.is_available(), "the outer cards are still there"
