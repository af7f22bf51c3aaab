"""The executor `cuda-graph` on an emulated card: the plain executor's outputs, few launches, one wait per round."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from emulated_card import Machine, emulated_cards, graphs, streams
from nightly import nightly_except
from tiny_models import (
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    plain_logits,
    random_prompts,
    tiny_llama,
)

from specbench_kit.core import counted_time
from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors import cuda_graph
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Append, Runner

CAPACITY, NEW_TOKENS, SLOTS = 160, 24, 9
SPECS = [
    "autoregressive",
    "fixed-k:k=3",
    "fixed-k:k=11",
    "svip",
    "tetris",
    "specedge:depth=3,budget=8,beams=4",
    "ssd",
]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


@pytest.fixture(scope="module")
def requests_() -> list[Request]:
    return make_requests(clear_prompts(tiny_llama(), [3, 9, 70], NEW_TOKENS), NEW_TOKENS)


def runners(device: str, executor: str, draft_device: str = "") -> tuple[Runner, Runner]:
    models: list[Any] = [
        tiny_llama().to(device),
        disturbed(tiny_llama(), 0.02).to(draft_device or device),
    ]
    target, draft = (make_runner(model, SLOTS, CAPACITY, executor) for model in models)
    return target, draft


KEPT = [("fixed-k:k=3", 0.0, 1), ("svip", 0.7, 3), ("specedge:depth=3,budget=8,beams=4", 0.0, 3)]
"""A chain of fixed and one of varying length, and a tree."""


@pytest.mark.parametrize(
    ("spec", "temperature", "batch_size"),
    nightly_except(KEPT[1:], product(SPECS, (0.0, 0.7), (1, 3))),
)
def test_outputs_of_the_plain_executor(
    spec: str, temperature: float, batch_size: int, requests_: list[Request], machine: Machine
) -> None:
    sampler = Sampler(temperature, top_p=0.9) if temperature else Sampler()
    method, options = parse_method(spec), {"sampler": sampler, "batch_size": batch_size}
    on_card = decode(method, runners("cuda", "cuda-graph"), requests_, **options)  # type: ignore[arg-type]
    assert machine.counts.replays > 0
    plain = decode(method, runners("cuda", "transformers"), requests_, **options)  # type: ignore[arg-type]
    assert outputs(on_card) == outputs(plain)
    drafted = [[round_.drafted for round_ in record.rounds] for record in on_card.values()]
    assert drafted == [[round_.drafted for round_ in record.rounds] for record in plain.values()]


@pytest.mark.parametrize("spec", ["fixed-k:k=3", "specedge:depth=3,budget=8,beams=4"])
def test_a_model_that_only_its_own_code_computes(
    spec: str, requests_: list[Request], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "is_computable", lambda _: False)
    on_card = decode(parse_method(spec), runners("cuda", "cuda-graph"), requests_)
    assert machine.counts.replays > 0
    assert outputs(on_card) == outputs(
        decode(parse_method(spec), runners("cpu", "transformers"), requests_)
    )


@pytest.mark.parametrize(
    ("rows", "tokens", "width"),
    [
        (1, 17, 32),
        (8, 9, 16),
        (8, 17, 20),
        (32, 5, 5),
        (32, 9, 10),
        (32, 64, 64),
        (32, 1, 1),
        (2, 64, 64),
        (4, 33, 40),
    ],
)
def test_forwards_are_padded_where_that_takes_no_time(rows: int, tokens: int, width: int) -> None:
    assert cuda_graph.padded_width(rows, tokens) == width


@pytest.mark.parametrize("spec", ["fixed-k:k=8", "specedge:depth=3,budget=12,beams=4"])
@pytest.mark.usefixtures("machine")
def test_outputs_of_forwards_that_are_hardly_padded(
    spec: str, requests_: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "FREE_TOKENS", 0)
    on_card = decode(parse_method(spec), runners("cuda", "cuda-graph"), requests_, batch_size=2)
    plain = decode(parse_method(spec), runners("cpu", "transformers"), requests_, batch_size=2)
    assert outputs(on_card) == outputs(plain)


def test_a_draft_on_another_card(requests_: list[Request], machine: Machine) -> None:
    method = parse_method("fixed-k:k=3")
    on_cards = decode(method, runners("cuda:0", "cuda-graph", "cuda:1"), requests_)
    assert machine.counts.total("copy between cards") > 0
    assert outputs(on_cards) == outputs(decode(method, runners("cpu", "transformers"), requests_))


@pytest.mark.usefixtures("machine")
def test_logits_of_chains_and_trees_in_every_shape() -> None:
    """A ragged batch in slots that are not the first, a tree over several forwards, and a commit that moves KV."""
    model = tiny_llama()
    reference = make_runner(tiny_llama(), SLOTS, CAPACITY, "transformers")
    runner = make_runner(model.to("cuda"), SLOTS, CAPACITY, "cuda-graph")
    prompts = random_prompts([40, 5, 70, 12], 64)
    for each in (reference, runner):
        for _ in range(SLOTS):
            each.acquire()
    steps = [
        [
            Append(slot, prompt, keep=len(prompt))
            for slot, prompt in zip((2, 3, 4, 8), prompts, strict=True)
        ],
        [
            Append(3, prompts[2][:6], [-1, 0, 0, 1, 1, -1], keep=6),
            Append(8, prompts[2][:2], keep=2),
        ],
        [Append(3, prompts[2][6:9], [3, 6, 5], keep=3), Append(2, prompts[2][7:10], keep=1)],
    ]
    kept = []
    for rows in steps:
        forwards = [each.forward(rows) for each in (reference, runner)]
        kept.append(forwards)
        assert forwards[0].argmax() == forwards[1].argmax()
        assert not forwards[1].is_nan()
        if len(kept) == 1:
            for each in (reference, runner):
                for row in rows:
                    each.commit(row.slot, range(len(row.tokens)))
    for expected, computed in kept:  # results of earlier forwards are still there
        torch.testing.assert_close(computed.logits.cpu(), expected.logits, atol=1e-4, rtol=1e-4)
    runner.commit(3, [0, 1, 3, 6, 7])
    text = [*prompts[1], *(prompts[2][node] for node in (0, 1, 3, 6, 7)), 7]
    after = runner.forward([Append(3, [7])])[0]
    torch.testing.assert_close(
        after.cpu(), plain_logits(tiny_llama(), text)[-1:], atol=1e-4, rtol=1e-4
    )


@pytest.mark.usefixtures("machine")
def test_all_forwards_of_a_text_are_computed_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt, whose forward is no graph, is not computed by other code, which rounds in another way.

    Where it was, a method that was right was called wrong on an H100 in bf16.
    """
    model = tiny_llama().to(torch.bfloat16)
    runner = make_runner(model.to("cuda"), SLOTS, CAPACITY, "cuda-graph")
    monkeypatch.setattr(model.model, "forward", None)
    (prompt,) = random_prompts([80], 64)
    slots = [runner.acquire(), runner.acquire()]
    whole = runner.forward([Append(slots[0], prompt, keep=80)])[0].float()
    parts = []
    for part in (prompt[:64], prompt[64:]):
        parts.append(runner.forward([Append(slots[1], part, keep=len(part))])[0].float().clone())
        runner.commit(slots[1], range(len(part)))
    torch.testing.assert_close(whole.cpu(), torch.cat(parts).cpu(), atol=0.02, rtol=0.02)


def test_a_prompt_is_one_graph_in_any_slot(machine: Machine) -> None:
    """It is computed kernel by kernel where tokens stand before it, or where it is longer than graphs are."""
    runner = make_runner(tiny_llama().to("cuda"), SLOTS, 900, "cuda-graph")
    reference = make_runner(tiny_llama(), SLOTS, 900, "transformers")
    prompts = random_prompts([100, 70, 128, 9, 600, 120], 64)
    for each in (runner, reference):
        for _ in prompts:
            each.acquire()
    launches = []
    for slot in (0, 1, 2):
        with machine.counts.during() as counts:
            forward = runner.forward([Append(slot, prompts[slot])])
            found = forward.argmax()
        assert found == reference.forward([Append(slot, prompts[slot])]).argmax()
        launches.append(counts.launches)
    assert launches[1:] == [0, 0], (
        "all three are graphs of 128 tokens, and the first one captures it"
    )
    for each in (runner, reference):
        for slot in (0, 1, 2):
            each.commit(slot, range(len(prompts[slot])))
    rows = [Append(slot, [7, 8], keep=2) for slot in (0, 1, 2)]
    rows += [Append(slot, prompts[slot]) for slot in (4, 3, 5)]
    mixed, expected = runner.forward(rows), reference.forward(rows)
    assert mixed.argmax() == expected.argmax()
    assert [part.shape[0] for part in (mixed[number] for number in range(6))] == [2, 2, 2, 1, 1, 1]
    torch.testing.assert_close(mixed.logits.cpu(), expected.logits, atol=1e-4, rtol=1e-4)
    for each in (runner, reference):
        each.commit(5, range(120))
    rows = [Append(5, prompts[0]), Append(3, [1], keep=1)]
    torch.testing.assert_close(
        runner.forward(rows).logits.cpu(), reference.forward(rows).logits, atol=1e-4, rtol=1e-4
    )


@pytest.mark.usefixtures("machine")
def test_what_captures_take_is_no_time_of_a_method(
    requests_: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H100 a batch's first rounds took up to ten times as long as the same ones later."""
    ages_s, begin, captured = 1000.0, graphs.Graph.capture_begin, []

    def slow(graph: graphs.Graph, *arguments: object, **options: object) -> None:
        for module in (counted_time, streams):
            now_s = module.perf_counter
            monkeypatch.setattr(module, "perf_counter", lambda now_s=now_s: now_s() + ages_s)
        captured.append(graph)
        begin(graph, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(graphs.Graph, "capture_begin", slow)
    records = decode(
        parse_method("specedge:depth=3,budget=8,beams=4"), runners("cuda", "cuda-graph"), requests_
    )
    assert len(captured) > 3
    for record in records.values():
        assert 0 < record.e2e_s < ages_s
        assert all(0 <= round_.draft_s + round_.verify_s < ages_s for round_ in record.rounds)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_round_of_fixed_length_waits_once(batch_size: int, machine: Machine) -> None:
    method, held = parse_method("fixed-k:k=4"), runners("cuda", "cuda-graph")
    prompts = make_requests(random_prompts([4] * batch_size, 64), NEW_TOKENS)
    decode(method, held, prompts, batch_size=batch_size)  # captures all shapes
    with machine.counts.during() as counts:
        records = decode(method, held, prompts, batch_size=batch_size)
    rounds = max(len(record.rounds) for record in records.values())
    assert counts.places("wait").total() <= rounds + batch_size, (
        "one per round, and one for each prompt"
    )
    assert counts.synchronisations == rounds, "the clock reads its events once a round"
    assert counts.copies_to_card == 0, "graphs copy their inputs themselves"
    assert counts.replays <= 2 * rounds + batch_size, "a chain, its verification, and the prompts"
    assert counts.launches <= 20 * rounds


def test_memory_does_not_grow_with_requests(requests_: list[Request], machine: Machine) -> None:
    held, method, after = (
        runners("cuda", "cuda-graph"),
        parse_method("specedge:depth=3,budget=8,beams=4"),
        [],
    )
    for _ in range(3):
        decode(method, held, requests_, batch_size=2)
        after.append(machine.cards[0].allocated_bytes)
    assert len(set(after[1:])) == 1, "the first time captures"


@pytest.mark.parametrize(
    "spec", ["autoregressive", "fixed-k:k=3", "specedge:depth=3,budget=8,beams=4"]
)
def test_a_pair_that_nobody_needs_is_freed_at_once(
    spec: str, requests_: list[Request], machine: Machine
) -> None:
    """Not when the garbage collector comes by: there may be no room for the next pair until then."""
    before = machine.cards[0].allocated_bytes
    held = runners("cuda", "cuda-graph")
    decode(parse_method(spec), held, requests_, batch_size=2)
    with gc_paused():
        del held
        assert machine.cards[0].allocated_bytes == before


@pytest.mark.usefixtures("machine")
def test_nan_is_refused(requests_: list[Request]) -> None:
    target, draft = runners("cuda", "cuda-graph")
    target.executor.model.lm_head.weight.fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(SkitError, match="NaN"):
        decode(parse_method("fixed-k:k=2"), (target, draft), requests_)


@pytest.mark.usefixtures("machine")
def test_what_it_cannot_run() -> None:
    with pytest.raises(SkitError, match="executor 'cuda-graph' needs a GPU: give --device cuda"):
        make_executor(tiny_llama(), 1, 64, None, "cuda-graph")
    sliding = tiny_llama().to("cuda")
    sliding.config.sliding_window = 16
    with pytest.raises(SkitError, match="executor 'cuda-graph' cannot run models of type 'llama'"):
        make_executor(sliding, 1, 64, None, "cuda-graph")


@pytest.mark.usefixtures("machine")
def test_one_shape_gives_a_token_the_same_logits_however_tokens_are_split() -> None:
    """One by one, in a chunk, in a tree, in a batch, and behind 64 others, bit by bit in half precision."""
    model = tiny_llama(
        hidden_size=128, intermediate_size=256
    )  # wide enough to be rounded by its shape elsewhere
    text = random_prompts([72], 64)[0]
    last = 66

    def logits(*parts: int, slot: int = 0, others: bool = False) -> torch.Tensor:
        """Return the logits after token `last` if the text comes in parts of these lengths."""
        runner = make_runner(
            deepcopy(model).to("cuda", torch.bfloat16), 3, CAPACITY, "cuda-invariant"
        )
        slots = [runner.acquire() for _ in range(3)]
        end = 0
        for count in parts:
            rows = [Append(slots[slot], text[end : end + count], keep=count)]
            rows += [Append(slots[2], text[:3])] if others else []
            forward = runner.forward(rows)
            for row in rows:
                runner.commit(row.slot, range(len(row.tokens)))
            end += count
        assert end > last
        assert runner.executor.captures == 1, "all forwards are one graph"  # type: ignore[attr-defined]
        return forward[0][last - end].cpu()

    alone = logits(last, 1)
    for split in ((last - 3, 8), (67,), (40, 27), (1, last)):
        assert torch.equal(logits(*split), alone), split
    assert torch.equal(logits(last - 3, 8, slot=1, others=True), alone)
    runner = make_runner(deepcopy(model).to("cuda", torch.bfloat16), 3, CAPACITY, "cuda-invariant")
    slot = runner.acquire()
    runner.forward([Append(slot, text[: last - 1])])
    runner.commit(slot, range(last - 1))
    tree = [9, text[last - 1], 11, text[last]]  # token `last` is the child of the second node
    in_tree = runner.forward([Append(slot, tree, [-1, -1, 0, 1], keep=4)])[0][3].cpu()
    assert torch.equal(in_tree, alone[: len(in_tree)])
    plain = plain_logits(model.to(torch.bfloat16), text[: last + 1])[-1]
    torch.testing.assert_close(alone.float(), plain, atol=0.5, rtol=0.1)


@pytest.mark.nightly  # the test above is of the logits that these follow from
@pytest.mark.parametrize("spec", SPECS[1:])
def test_outputs_in_one_shape_are_plain_decodings(
    spec: str, requests_: list[Request], machine: Machine
) -> None:
    """In half precision, where the outputs of other executors differ now and then."""
    models: list[Any] = [tiny_llama(), disturbed(tiny_llama(), 0.02)]
    target, draft = (
        make_runner(model.to("cuda", torch.bfloat16), 3, CAPACITY, executor)
        for model, executor in zip(models, ("cuda-invariant", "cuda-graph"), strict=True)
    )
    plain, records = (
        decode(parse_method(each), (target, draft), requests_, batch_size=2)
        for each in (SPECS[0], spec)
    )
    assert outputs(records) == outputs(plain)
    assert machine.counts.replays > 0
