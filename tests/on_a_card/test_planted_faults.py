"""Faults of GPU code, planted on purpose into the executor `cuda-graph`: a check on the emulated card notices each.

A fault is a function that changes the kit through a `MonkeyPatch`. The check that has to notice it passes without any.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from emulated_card import Machine, emulated_cards
from nightly import nightly_except
from tiny_models import (
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.card_clock import CardClock
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors import cuda_graph, graph_forward, graph_inputs, graph_work, kv
from specbench_kit.models.executors.kernels import compact_mask
from specbench_kit.models.runner import Append, Runner

Fault = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Machine], None]
CAPACITY, NEW_TOKENS, BATCH_SIZE = 160, 10, 2
SLOTS = BATCH_SIZE + 1
CHAINS, TREES = "fixed-k:k=3", "specedge:depth=3,budget=8,beams=4"
PROMPTS = clear_prompts(tiny_llama(), [3, 9, 5], NEW_TOKENS)
REQUESTS = make_requests(PROMPTS, NEW_TOKENS)
faults: dict[Fault, tuple[Check, type[Exception], str | None]] = {}
"""Every fault with the check that has to notice it, and how: by an assertion, unless the card refuses it."""


def noticed_by(
    check: Check, error: type[Exception] = AssertionError, says: str | None = None
) -> Callable[[Fault], Fault]:
    """Register a fault."""

    def register(fault: Fault) -> Fault:
        faults[fault] = check, error, says
        return fault

    return register


def runners(device: str, executor: str) -> tuple[Runner, Runner]:
    models: list[Any] = [tiny_llama(), disturbed(tiny_llama(), 0.02)]
    target, draft = (make_runner(model.to(device), SLOTS, CAPACITY, executor) for model in models)
    return target, draft


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


@cache
def on_the_host(spec: str) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return what a method decodes on the host, without cards: outputs, and accepted tokens by round."""
    return decoded(spec, runners("cpu", "transformers"))[:2]


def decoded(
    spec: str, held: tuple[Runner, Runner]
) -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, RequestRecord]]:
    records = decode(parse_method(spec), held, REQUESTS, batch_size=BATCH_SIZE)
    accepted = {
        name: [round_.accepted for round_ in record.rounds] for name, record in records.items()
    }
    return outputs(records), accepted, records


def require_outputs(spec: str, held: tuple[Runner, Runner]) -> int:
    """Decode all requests as on the host, drafts included, which no output would show; return the rounds."""
    found, accepted, records = decoded(spec, held)
    assert (found, accepted) == on_the_host(spec)
    return sum(len(record.rounds) for record in records.values())


def chains(_: Machine) -> None:
    require_outputs(CHAINS, runners("cuda", "cuda-graph"))


def trees(_: Machine) -> None:
    """Trees of which the host chooses each level; `test_card_trees` is of those that the card grows."""
    held = runners("cuda", "cuda-graph")
    held[1].grows_trees = False
    require_outputs(TREES, held)


def bounds(machine: Machine) -> None:
    """A round waits once, synchronises once, and copies nothing to the card outside of graphs."""
    held = runners("cuda", "cuda-graph")
    for _ in range(2):
        require_outputs(CHAINS, held)
    with machine.counts.during() as counts:
        rounds = require_outputs(CHAINS, held)
    assert counts.waits <= rounds + len(REQUESTS)
    assert counts.synchronisations <= rounds
    assert counts.copies_to_card == 0
    assert counts.launches <= 20 * rounds


def memory(machine: Machine) -> None:
    """Nothing is left on the card of requests that have ended."""
    held, after = runners("cuda", "cuda-graph"), []
    for _ in range(3):
        require_outputs(CHAINS, held)
        after.append(machine.cards[0].allocated_bytes)
    assert after[1] == after[2]


def unread_results(_: Machine) -> None:
    """Results that nobody has read are still there when further forwards were launched, in the same slot and others."""
    found = []
    for device, executor in (("cpu", "transformers"), ("cuda", "cuda-graph")):
        target, _draft = runners(device, executor)
        slots = [target.acquire(), target.acquire()]
        for _ in range(2):  # nobody keeps these, so that nobody waits for them
            target.forward([Append(slots[0], [1, 2], keep=2)])
            target.commit(slots[0], ())
        forwards = []
        for slot, tokens in ((0, [3, 4]), (0, [5, 6]), (1, [7, 8])):
            forwards.append(target.forward([Append(slots[slot], tokens, keep=2)]))
            target.commit(slots[slot], ())
        logits = [forward.logits.argmax(-1).tolist() for forward in forwards]
        found.append(([forward.argmax() for forward in forwards], logits))
    assert found[0] == found[1]


def garbage(machine: Machine) -> None:
    """Captures succeed whatever garbage lies about, and however often it is collected."""
    held = runners("cuda", "cuda-graph")
    require_outputs(CHAINS, held)
    litter: list[Any] = [held]
    litter.append(litter)  # only the collector frees what refers to itself
    heap = [litter]  # keeps it until a capture runs, since the collector may come by before that
    held = runners("cuda", "cuda-graph")
    del litter

    def collect_if_allowed(right: Any, own: Any, *given: Any) -> Any:
        if gc.isenabled() and machine.cards[0].capture is not None:
            heap.clear()
            gc.collect()
        return right(own, *given)

    with pytest.MonkeyPatch.context() as patch:
        around(patch, graph_forward.GraphMemory, "write", collect_if_allowed)
        require_outputs(CHAINS, held)


def prompts(_: Machine) -> None:
    """Prompts that are longer than a graph is wide are computed, from wherever they go on."""
    target = runners("cuda", "cuda-graph")[0]
    slot = target.acquire()
    target.forward([Append(slot, [1, 2, 3], keep=1)]).argmax()
    target.commit(slot, range(3))
    target.forward([Append(slot, [1] * 65, keep=1)]).argmax()


def nan(_: Machine) -> None:
    """Logits that are not numbers end a run."""
    target, draft = runners("cuda", "cuda-graph")
    target.executor.model.lm_head.weight.fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(SkitError, match="NaN"):
        require_outputs(CHAINS, (target, draft))


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by `change`, which gets the function itself before its arguments."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **options: change(right, *given, **options))


@noticed_by(chains, RuntimeError, "at least two devices, cpu and cuda:0")
def a_mask_is_made_on_the_host(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        compact_mask.CompactMask,
        "additive",
        lambda right, own, dtype: right(own._replace(last=own.last.cpu()), dtype),
    )


@noticed_by(chains, RuntimeError, "at least two devices, cuda:0 and cuda:1")
def a_tensor_is_made_on_another_card(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, *given: Any) -> None:
        right(own, *given)
        own.linked = own.linked.to("cuda:1")

    around(patch, graph_forward.GraphMemory, "__init__", change)


@noticed_by(chains, TypeError, "can't convert cuda:0 device type tensor to numpy")
def results_are_read_as_an_array_of_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        cuda_graph.CudaGraphExecutor, "read_board", lambda own, _: own._memory.board.numpy()
    )


@noticed_by(chains)
def a_graph_reads_stale_inputs(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, *given: Any) -> None:
        if not hasattr(own, "filled"):
            own.filled = right(own, *given) or True

    around(patch, graph_inputs.GraphInputs, "fill", change)


@noticed_by(chains)
def positions_are_those_of_the_first_request(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, *given: Any) -> None:
        right(own, *given)
        width = own.shape.width
        own._numbers[:, 2 * width : 3 * width] = own._numbers[0, 2 * width : 3 * width]

    around(patch, graph_inputs.GraphInputs, "fill", change)


@noticed_by(chains)
def padding_is_written_over_the_first_token(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, shape: Any, _: int, device: Any) -> None:
        right(own, shape, 0, device)

    around(patch, graph_inputs.GraphInputs, "__init__", change)


@noticed_by(chains)
def tokens_attend_to_padding_after_them(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        graph_forward.GraphMemory,
        "chain_mask",
        lambda right, own, cells, length: right(own, cells + 1, length),
    )


@noticed_by(chains)
def a_captured_length_is_too_short(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda_graph, "LEAST_LENGTH", 4)
    around(
        patch,
        cuda_graph.CudaGraphExecutor,
        "_length",
        lambda right, own, work: max(4, right(own, work) // 2),
    )


@noticed_by(chains)
def a_chain_goes_on_from_the_request_before(patch: pytest.MonkeyPatch) -> None:
    """The place of the last token, which a graph keeps, is not reset."""

    def change(right: Any, own: Any, *given: Any) -> Any:
        before = own._memory.cell.clone()
        result = right(own, *given)
        own._memory.cell.copy_(
            torch.where(before == own._memory.trash, own._memory.cell, before + 1)
        )
        return result

    around(patch, graph_forward.GraphComputations, "chain", change)


@noticed_by(chains)
def rows_are_answered_with_each_others_tokens(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        cuda_graph.CudaGraphExecutor,
        "read_board",
        lambda right, own, work: right(own, work)[::-1].copy(),
    )


@noticed_by(unread_results, IndexError, "out of bounds")
def one_graph_serves_all_slots(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        graph_work.GraphLibrary,
        "find",
        lambda right, own, key: right(own, key._replace(shape=_at_0(key.shape))),
    )
    around(
        patch,
        graph_work.GraphLibrary,
        "capture",
        lambda right, own, key, *given: right(own, key._replace(shape=_at_0(key.shape)), *given),
    )


def _at_0(shape: graph_inputs.GraphShape) -> graph_inputs.GraphShape:
    return shape._replace(first=0)


@noticed_by(chains, SkitError, "NaN")
def results_are_read_before_they_arrive(patch: pytest.MonkeyPatch) -> None:
    def read(own: Any, _: Any) -> Any:
        own._memory.host_board.copy_(own._memory.board, non_blocking=True)
        return own._memory.host_board.numpy().copy()

    patch.setattr(cuda_graph.CudaGraphExecutor, "read_board", read)


@noticed_by(unread_results, RuntimeError, "pinned memory was changed while the copy")
def inputs_are_overwritten_while_a_graph_reads_them(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, *given: Any) -> None:
        own.was_read = type("Read", (), {"query": lambda _: True, "record": lambda *_: None})()
        right(own, *given)

    around(patch, graph_inputs.GraphInputs, "fill", change)


@noticed_by(chains, RuntimeError, "memory of cuda:0 that was freed")
def a_graph_outlives_its_inputs(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, key: Any, compute: Any, inputs: Any) -> Any:
        captured = right(own, key, compute, inputs)
        captured.inputs = None
        return captured

    around(patch, graph_work.GraphLibrary, "capture", change)


@noticed_by(chains, RuntimeError, "when stream is capturing: wait")
def the_host_waits_inside_a_capture(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, shape: Any, columns: Any, logits: Any, *given: Any) -> Any:
        assert not logits.isnan().any().item()
        return right(own, shape, columns, logits, *given)

    around(patch, graph_forward.GraphMemory, "write", change)


@noticed_by(chains, RuntimeError, "when stream is capturing: copy to card")
def the_host_copies_inside_a_capture(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, cells: Any, length: int) -> Any:
        return right(own, cells + torch.tensor([0], device=cells.device), length)

    around(patch, graph_forward.GraphMemory, "chain_mask", change)


@noticed_by(unread_results)
def results_that_are_needed_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    def take(own: Any, work: Any) -> None:
        own._owner = cuda_graph.ref(work)

    patch.setattr(cuda_graph.CudaGraphExecutor, "_take_board", take)


@noticed_by(chains)
def drafted_tokens_do_not_reach_the_verification(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, work: Any) -> Any:
        tokens = right(own, work)
        own._memory.linked.zero_()
        return tokens

    around(patch, cuda_graph.CudaGraphExecutor, "_link", change)


@noticed_by(chains)
def a_chain_is_not_ended(patch: pytest.MonkeyPatch) -> None:
    """What follows the first chain finds it still open, and its later steps are never started."""
    patch.setattr(
        cuda_graph.CudaGraphExecutor, "_end_chain", lambda own: setattr(own, "_chain", None)
    )
    patch.setattr(
        graph_work.Work, "goes_on", lambda own, _, layers: own.starts_chain and not layers
    )


@noticed_by(trees)
def nodes_attend_to_their_siblings(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, row: Any, line: Any) -> None:
        right(own, row, line)
        own._host_ancestors[row.slot - own.shape.first].fill_(1)

    around(patch, graph_inputs.GraphInputs, "_fill_tree", change)


@noticed_by(trees)
def nodes_have_the_positions_of_their_cells(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, row: Any, line: Any) -> None:
        width = own.shape.width
        before = line[2 * width : 3 * width].copy()
        right(own, row, line)
        line[2 * width : 3 * width] = before

    around(patch, graph_inputs.GraphInputs, "_fill_tree", change)


@noticed_by(trees)
def kv_of_accepted_nodes_is_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda_graph.CudaGraphExecutor, "_move_kv", lambda own: own._moves.clear())


@noticed_by(trees)
def kv_is_moved_to_the_wrong_slot(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, moves: Any) -> None:
        right(own, [(0, source, to) for _, source, to in moves])

    around(patch, cuda_graph.MoveInputs, "fill", change)


@noticed_by(trees, RuntimeError, "used before it was written on another stream")
def kv_is_moved_on_a_stream_that_nobody_waits_for(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            right(own)

    around(patch, cuda_graph.CudaGraphExecutor, "_move_kv", change)


@noticed_by(bounds)
def results_are_read_again_for_every_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph_work.Work, "unread", property(lambda own: own.started > 0))


@noticed_by(bounds)
def inputs_are_copied_one_by_one(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        cuda_graph.CudaGraphExecutor,
        "launch",
        lambda right, own, work: (torch.tensor([1], device=own.device), right(own, work))[1],
    )


@noticed_by(bounds)
def the_clock_waits_at_every_mark(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any) -> int:
        number: int = right(own)
        own._events[number].synchronize()
        return number

    around(patch, CardClock, "_mark", change)


@noticed_by(bounds)
def every_forward_is_launched_without_a_graph(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda_graph, "_is_captured", lambda _: False)


@noticed_by(memory)
def memory_grows_with_requests(patch: pytest.MonkeyPatch) -> None:
    kept = []

    def change(right: Any, own: Any) -> Any:
        results = right(own)
        kept.append(results.logits)
        return results

    around(patch, graph_work.CapturedGraph, "replay", change)


@noticed_by(unread_results)
def results_change_in_the_hands_of_their_reader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph_work.Results, "keep", lambda _: None)


@noticed_by(nan)
def nan_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    def change(right: Any, own: Any, work: Any) -> Any:
        table = right(own, work)
        table[..., graph_work.NAN] = 0
        return table

    around(patch, cuda_graph.CudaGraphExecutor, "read_board", change)


@noticed_by(garbage, RuntimeError, "a graph was freed")
def garbage_is_collected_in_a_capture(patch: pytest.MonkeyPatch) -> None:
    """On an H100 this ended the process."""
    patch.setattr(graph_work, "gc_paused", nullcontext)


@noticed_by(prompts, RuntimeError, "misaligned address")
def the_mask_of_a_prompt_begins_in_the_middle_of_a_table(patch: pytest.MonkeyPatch) -> None:
    """On an H100 this cost the process its card; our own forward makes a mask of its own where heads share keys."""
    patch.setattr(cuda_graph, "is_computable", lambda _: False)

    def change(_: Any, own: Any, _starts: Any, width: int, length: int) -> Any:
        own._wide = own._additive(
            torch.ones((width, length + 1), dtype=torch.bool, device=own.device)
        )
        return own._wide[..., 1:]

    around(patch, kv.MaskBuilder, "chains", change)


CHECKS = [chains, trees, bounds, memory, unread_results, garbage, prompts, nan]
KEPT = [
    a_mask_is_made_on_the_host,
    inputs_are_overwritten_while_a_graph_reads_them,
    the_host_waits_inside_a_capture,
    nodes_attend_to_their_siblings,
    garbage_is_collected_in_a_capture,
    the_mask_of_a_prompt_begins_in_the_middle_of_a_table,
]
"""Faults that are planted before every change: a place, a copy, captures and masks."""


@pytest.mark.nightly  # what a check requires, the other tests of this folder require too
@pytest.mark.parametrize("check", CHECKS)
def test_without_a_fault_every_check_passes(check: Check, machine: Machine) -> None:
    check(machine)


@pytest.mark.parametrize("fault", nightly_except(KEPT, faults))
def test_a_planted_fault_is_noticed(
    fault: Fault, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, error, says = faults[fault]
    fault(monkeypatch)
    with pytest.raises(error, match=says):
        check(machine)
