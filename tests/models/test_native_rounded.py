"""Heads and trained drafts in 8 bits: products of rounded weights with rounded activations, whatever the batch."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from native_models import rounded
from tiny_heads import put_beside
from tiny_heads import random_head as random_weights_head
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench_kit.methods.spec import parse_method
from specbench_kit.models.drafts.reduced import ReducedOutput
from specbench_kit.models.executors.base import executors, make_executor
from specbench_kit.models.executors.library import byte_products
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Append, Runner

pytestmark = pytest.mark.skipif(
    not byte_products(), reason="this processor's bytes are multiplied by portable code"
)
WIDTH, VOCABULARY = 64, 150


def random_head(**options: Any) -> HeadModel:
    return random_weights_head(WIDTH, VOCABULARY, torch.arange(70) * 2, **options)


def with_rounded_weights(model: PreTrainedModel, *, round_activations: bool) -> PreTrainedModel:
    """Return the model with its matrices as they come back from Q8_0, and its activations rounded likewise."""
    model = deepcopy(model)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            blocks = quantize(parameter.numpy(), GGMLQuantizationType.Q8_0)
            parameter.copy_(torch.from_numpy(dequantize(blocks, GGMLQuantizationType.Q8_0)))
    for module in model.modules():
        if round_activations and isinstance(module, nn.Linear | ReducedOutput):
            module.register_forward_pre_hook(lambda _, read: (rounded(read[0], 32),))
    return model


def drafted(
    model: PreTrainedModel, executor: str | None, states: Tensor, pieces: tuple[int, ...]
) -> Tensor:
    """Logits after every token of a text, whose rows and states are given in pieces."""
    runner = Runner(make_executor(model, 2, 100, None, executor))
    slot, first, pieces_drafted = runner.acquire(), 0, []
    for count in pieces:
        runner.executor.add_states(slot, states[first : first + count])  # type: ignore[attr-defined]
        text = list(range(first, first + count))
        pieces_drafted.append(runner.forward([Append(slot, text, keep=count)])[0].clone())
        runner.commit(slot, range(count))
        first += count
    return torch.cat(pieces_drafted)


@pytest.mark.parametrize("options", [{}, {"norm_before_residual": False, "fc_bias": True}])
def test_a_head_multiplies_rounded_weights_by_rounded_activations(
    options: dict[str, object],
) -> None:
    head, shares = random_head(**options), []
    assert type(make_executor(head, 1, 50, None)) is executors.get("native-8bit-head")
    for seed in range(5):
        states = torch.randn((3, 3 * WIDTH), generator=torch.Generator().manual_seed(seed))
        computed = drafted(head, None, states, (3,))
        expected, exact = (
            drafted(with_rounded_weights(head, round_activations=on), "head", states, (3,))
            for on in (True, False)
        )
        shares.append(
            ((computed - expected).abs().median() / (computed - exact).abs().median()).item()
        )
        assert (computed - exact).abs().median() < 0.1 * exact.abs().median()
    # A sum in another order may round an activation to its neighbour, and the whole text differs: most have none.
    assert sorted(shares)[2] < 0.01


@pytest.mark.parametrize("name", ["native-head", "native-8bit-head"])
def test_a_head_has_the_same_bits_however_states_and_tokens_are_put_together(name: str) -> None:
    head = random_head()
    states = torch.randn((40, 3 * WIDTH), generator=torch.Generator().manual_seed(1))
    at_once = drafted(head, name, states, (40,))
    assert torch.equal(drafted(head, name, states, (1,) * 40), at_once)
    before = torch.get_num_threads()
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(drafted(head, name, states, (7, 1, 13, 2, 17)), at_once)
    finally:
        torch.set_num_threads(before)


def test_a_trained_draft_multiplies_rounded_weights_by_rounded_activations() -> None:
    draft = tiny_llama(
        0, vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=96, num_attention_heads=4
    )
    draft.lm_head = ReducedOutput(WIDTH, torch.arange(5, 75), VOCABULARY)
    nn.init.normal_(draft.lm_head.weight, std=0.2)
    draft.requires_grad_(False)
    runner = make_runner(draft, 1, 100)
    assert type(runner.executor) is executors.get("native-8bit-draft")
    shares = []
    for text in random_prompts([3] * 5, VOCABULARY):
        slot = runner.acquire()
        computed = runner.forward([Append(slot, text, keep=3)])[0]
        runner.release(slot)
        expected, exact = (
            with_rounded_weights(draft, round_activations=on)(torch.tensor([text])).logits[0]
            for on in (True, False)
        )
        shares.append(
            ((computed - expected).abs().median() / (computed - exact).abs().median()).item()
        )
    assert sorted(shares)[2] < 0.01


def test_what_8_bits_cannot_hold_is_computed_as_before() -> None:
    head = random_head()
    head.fc = nn.Linear(3 * WIDTH - 16, WIDTH, bias=False)
    assert type(make_executor(head, 1, 50, None)) is executors.get("native-head")
    assert (
        executors.get("native-8bit-head").refusal(head) == "needs matrices whose inputs 32 divides"
    )


def test_a_head_in_8_bits_loses_nothing() -> None:
    target = tiny_llama(0, vocab_size=VOCABULARY, hidden_size=WIDTH, num_attention_heads=4)
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_beside(runners[0], random_head())
    requests = make_requests(random_prompts([5, 1, 30], VOCABULARY), 20)
    plain = outputs(decode(AUTOREGRESSIVE, runners, requests))
    for method in ("eagle:k=3", "eagle2-tree:drafter=head,total=8,depth=3,top_k=3"):
        assert outputs(decode(parse_method(method), runners, requests, batch_size=2)) == plain, (
            method
        )
