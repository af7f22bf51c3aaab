"""Small feature heads beside small targets: untrained ones for any, and one that has learned what its target says."""

import random
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from specbench_kit.methods.base import Method
from specbench_kit.models.draft_library import HEAD, OWN_MEDUSA, named
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.config import HeadConfig
from specbench_kit.models.heads.files import on_device
from specbench_kit.models.heads.medusa import MedusaConfig, MedusaModel
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Append, Runner
from specbench_kit.studies.training.distillation.answers import teach
from specbench_kit.studies.training.distillation.batches import batches
from specbench_kit.studies.training.distillation.options import HeadRecipe
from specbench_kit.studies.training.head_training import HeadLoss, HeadOptimizer, new_head

_beside: WeakKeyDictionary[Runner, Runner] = WeakKeyDictionary()
_medusa_beside: WeakKeyDictionary[Runner, Runner] = WeakKeyDictionary()


def heads_beside(method: Method, target: Runner) -> Mapping[str, Runner]:
    """The heads that a method's drafter asks for, all of them the one beside the target."""
    names = [name for name in method.drafting.models if name.startswith(HEAD)]
    if not names:
        return {}
    if names == [named(OWN_MEDUSA)]:
        if target not in _medusa_beside:
            put_medusa_beside(target, untrained_medusa(target))
        return {names[0]: _medusa_beside[target]}
    if target not in _beside:
        put_beside(target, untrained(target))
    return dict.fromkeys(names, _beside[target])


def put_beside(target: Runner, head: HeadModel, executor: str | None = None) -> None:
    """Let methods that draft with a head find this one, on the fastest executor or the named one."""
    slots, placed = target.executor.slots, on_device(head, target.device)
    _beside[target] = Runner(
        make_executor(placed, slots, target.capacity, target.vocabulary, executor)
    )


def put_medusa_beside(target: Runner, model: MedusaModel) -> None:
    """Let methods that draft with Medusa heads find these."""
    executor = make_executor(
        model.to(target.device), target.executor.slots, target.capacity, target.vocabulary
    )
    _medusa_beside[target] = Runner(executor)


def untrained_medusa(target: Runner, seed: int = 0, heads: int = 4) -> MedusaModel:
    """Medusa heads for a target of which no more is known than its runner; they read its first layer."""
    width = _width(target)
    assert target.vocabulary is not None
    torch.manual_seed(seed)
    model = MedusaModel(
        MedusaConfig(heads, width, target.vocabulary, 2 * target.vocabulary // 3, 1)
    )
    model.d2t.copy_(torch.arange(model.config.draft_vocab_size) // 2)
    return model.eval().requires_grad_(False)


def _width(target: Runner) -> int:
    slot = target.acquire()
    width: int = target.forward([Append(slot, [0])], layers=(1,)).hidden[1].shape[-1]
    target.release(slot)
    return width


def untrained(target: Runner, seed: int = 0) -> HeadModel:
    """A head for a target of which no more is known than its runner; it can say two thirds of the tokens."""
    width = _width(target)
    assert target.vocabulary is not None
    layer = LlamaConfig(
        vocab_size=target.vocabulary,
        hidden_size=width,
        intermediate_size=width,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        max_position_embeddings=target.capacity,
    )
    config = HeadConfig(layer, 2 * target.vocabulary // 3, width, (0, 1, 1), "tiny")
    torch.manual_seed(seed)
    head = HeadModel(config)
    head.d2t.copy_(torch.arange(config.draft_vocab_size) // 2)
    return head.eval().requires_grad_(False)


def random_head(width: int, vocabulary: int, tokens: Tensor, **options: Any) -> HeadModel:
    """A head with random weights for a target of this width, which drafts these tokens."""
    layer = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    head = HeadModel(HeadConfig(layer, len(tokens), width, (0, 1, 2), "tiny", **options))
    for weight in head.parameters():
        nn.init.normal_(weight, std=0.2) if weight.dim() > 1 else nn.init.uniform_(weight, 0.5, 1.5)
    head.d2t.copy_(tokens - torch.arange(len(tokens)))
    return head.eval().requires_grad_(False)


def trained(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> HeadModel:
    """A head that knows some of the answers."""
    layers, vocabulary = (0, 1, 2), target.config.vocab_size
    longest = max(
        len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)
    )
    runner = Runner(make_executor(target, 1, longest, None))
    texts = [
        teach(runner, index, prompt, answer, layers)
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    head = new_head(target, torch.arange(vocabulary), 0, layers)
    loss, optimizer = HeadLoss(head, HeadRecipe(), vocabulary), HeadOptimizer(head, 2e-2)
    head.train()
    for step in range(40):
        for batch in batches(texts, 4096, random.Random(step)):
            loss(batch).loss.backward()
            optimizer.step(min(1.0, 1 - step / 40))
    return head.eval().requires_grad_(False)
