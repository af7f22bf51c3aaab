"""How many kernels a layer is on a card, and that fused ones change no output."""

from collections.abc import Iterator

import pytest
import torch
from emulated_card import Machine, emulated_cards
from tiny_models import (
    clear_prompts,
    decode,
    disturbed,
    fill,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors import cuda_graph
from specbench_kit.models.executors.cuda_graph import CudaGraphExecutor, TorchGraphExecutor
from specbench_kit.models.executors.kernels.base import PART
from specbench_kit.models.executors.kernels.choice import Choice
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.kernels.description import OWN, Details
from specbench_kit.models.executors.kernels.operators import FUSED, describe_fused
from specbench_kit.models.runner import Append, Runner

CAPACITY = 700
FUSED_KERNELS = 9
"""Four products, two norms with what is added before, a rotation that writes KV, a gate and an attention."""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulated card have the operators that are Triton kernels on a real one: each is one launch there."""
    monkeypatch.setattr(cuda_graph.CudaGraphExecutor, "_choose", lambda *_: Choice(FUSED))
    monkeypatch.setattr(cuda_graph.CudaGraphExecutor, "_choose_describe", lambda *_: describe_fused)


def make_model(kind: type[PretrainedConfig], layers: int) -> PreTrainedModel:
    config = kind(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CAPACITY,
    )
    return fill(AutoModelForCausalLM.from_config(config), 0)


@torch.inference_mode()
def kernels_of(
    kind: type[PretrainedConfig],
    layers: int,
    executor: str,
    width: int,
    is_tree: bool,
    context: int,
) -> int:
    """Return how many kernels the graph of a forward of two requests records."""
    runner = make_runner(make_model(kind, layers).to("cuda"), 2, CAPACITY, executor)
    slots = [runner.acquire(), runner.acquire()]
    for slot in slots if width < 100 else ():
        runner.forward([Append(slot, [1] * context)]).argmax()
        runner.commit(slot, range(context))
    rows = [
        Append(slot, list(range(width)), [-1] * width if is_tree else None, keep=width)
        for slot in slots
    ]
    runner.forward(rows if width < 100 else [Append(slots[0], [5] * width)]).argmax()
    assert isinstance(runner.executor, CudaGraphExecutor)
    graph = next(reversed(runner.executor._graphs._graphs.values())).graph
    return len(graph._steps)  # type: ignore[attr-defined]  # an emulated one


def kernels_a_layer(
    kind: type[PretrainedConfig],
    executor: str,
    width: int,
    is_tree: bool = False,
    context: int = 3,
) -> int:
    """Return how many kernels two layers more record, halved."""
    counts = [kernels_of(kind, layers, executor, width, is_tree, context) for layers in (1, 3)]
    assert (counts[1] - counts[0]) % 2 == 0
    return (counts[1] - counts[0]) // 2


@pytest.mark.usefixtures("machine", "_with_triton")
@pytest.mark.parametrize(
    ("kind", "by_torch"), [(LlamaConfig, 19), (Qwen2Config, 19), (Qwen3Config, 21)]
)
def test_a_layer_of_a_verification(kind: type[PretrainedConfig], by_torch: int) -> None:
    assert kernels_a_layer(kind, "cuda-graph-torch", 5) == by_torch
    assert kernels_a_layer(kind, "cuda-graph", 5) == FUSED_KERNELS


@pytest.mark.usefixtures("machine", "_with_triton")
@pytest.mark.parametrize(("width", "is_tree"), [(2, False), (5, True), (300, False)])
def test_a_layer_of_other_forwards(width: int, is_tree: bool) -> None:
    """Chains, trees and prompts."""
    assert kernels_a_layer(Qwen3Config, "cuda-graph", width, is_tree) == FUSED_KERNELS


@pytest.mark.usefixtures("machine", "_with_triton")
@pytest.mark.parametrize(("width", "is_tree"), [(1, False), (5, True)])
def test_a_layer_over_more_keys_than_a_program_reads(width: int, is_tree: bool) -> None:
    """What programs find in their parts of the keys one more kernel joins."""
    assert kernels_a_layer(Qwen3Config, "cuda-graph", width, is_tree, 500) == FUSED_KERNELS + 1


def test_an_operator_is_one_launch_on_the_card(machine: Machine) -> None:
    hidden = torch.ones((2, 3, 32), device="cuda")
    weight = torch.ones(32, device="cuda")
    projected = torch.ones((2, 3, 8, 8), device="cuda")
    store = torch.zeros((2, 4, 2, 9, 8), device="cuda")
    places = [torch.tensor(numbers).to("cuda") for numbers in ([[0], [2]], [[0, 1, 2]] * 2)]
    turns = torch.ones((2, 2, 3, 8), device="cuda")
    with torch.inference_mode(), machine.counts.during() as counts:
        FUSED.norm(hidden, weight, 1e-6)
        FUSED.add_norm(hidden, hidden, weight, 1e-6)
        FUSED.rotate(projected, turns[0], turns[1], None, 0.0, 4, *store.unbind(), *places)
        FUSED.gate(hidden)
    assert (counts.launches, counts.waits, counts.copies_to_card) == (4, 0, 0)
    written = store.cpu().abs().sum((2, 4)) > 0
    assert written[:, [0, 2], :3].all()
    assert written.sum() == 2 * 2 * 3, "what the operator writes is written on the card"


@pytest.mark.parametrize(("length", "launches"), [(PART, 1), (PART + 1, 2)])
def test_attention_and_descriptions_are_launches_without_a_wait(
    length: int, launches: int, machine: Machine
) -> None:
    keys = torch.arange(length, device="cuda")
    cells = torch.tensor([[4, 5, 6]], device="cuda")
    store = torch.ones((2, 1, 2, length, 8), device="cuda")
    queries = torch.ones((1, 2, 6, 8), device="cuda")
    logits = torch.ones((1, 3, 9), device="cuda")
    with torch.inference_mode():
        attention = FUSED.attention(CompactMask(keys, cells, length, cells), 2, torch.float32)
        with machine.counts.during() as counts:
            found = attention(queries, *store.unbind(), 1.0)
        assert (counts.launches, counts.waits, counts.copies_to_card) == (launches, 0, 0)
        assert (found.cpu() == 1).all()
        with machine.counts.during() as counts:
            fields = describe_fused(logits, cells, Details(1.0)).fields
        assert (counts.launches, counts.waits, counts.copies_to_card) == (2, 0, 0)
        assert fields.cpu()[0, :, OWN].tolist() == [4, 5, 6]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("spec", ["fixed-k:k=3", "specedge:depth=3,budget=8,beams=4"])
def test_outputs_are_those_of_torchs_operations(spec: str, request: pytest.FixtureRequest) -> None:
    """With a batch of three, whose prompts are graphs, padded, and longer than graphs are."""
    prompts = clear_prompts(tiny_llama(max_position_embeddings=1024), [3, 70, 600], 12)
    requests = make_requests(prompts, 12)
    by_torch = decode(parse_method(spec), runners("cuda-graph-torch"), requests, batch_size=3)
    request.getfixturevalue("_with_triton")
    pair = runners("cuda-graph")
    assert pair[0].executor.kernels == "triton"
    assert outputs(decode(parse_method(spec), pair, requests, batch_size=3)) == outputs(by_torch)


def runners(executor: str) -> tuple[Runner, Runner]:
    model = tiny_llama(max_position_embeddings=1024)
    target, draft = (
        make_runner(each.to("cuda"), 4, 700, executor) for each in (model, disturbed(model, 0.02))
    )
    return target, draft


@pytest.mark.usefixtures("machine")
def test_an_executor_says_which_kernels_it_has() -> None:
    runner = make_runner(tiny_llama().to("cuda"), 1, 64, "cuda-graph-torch")
    assert isinstance(runner.executor, TorchGraphExecutor)
    assert runner.executor.kernels == "torch: the executor compares with them"
    assert make_runner(tiny_llama(), 1, 64, "transformers").executor.kernels == ""
