"""Small random models that the native executors compute, and the ways in which a text can be fed to them."""

from collections.abc import Iterator, Sequence

import torch
import transformers
from tiny_models import fill, tiny_llama
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specbench_kit.models.executors import library
from specbench_kit.models.runner import Append, Runner

SIZES = {
    "vocab_size": 90,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(**options: object) -> PreTrainedModel:
    return tiny_llama(0, **SIZES | options)


def qwen2() -> PreTrainedModel:
    return fill(Qwen2ForCausalLM(Qwen2Config(**SIZES)), 1)


def qwen3() -> PreTrainedModel:
    return fill(Qwen3ForCausalLM(Qwen3Config(**SIZES)), 2)


def mistral() -> PreTrainedModel:
    return fill(
        transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=None)), 3
    )


def stored_as(dtype: torch.dtype) -> PreTrainedModel:
    """Weights that were rounded before they were loaded, as those of a checkpoint in half precision."""
    return llama().to(dtype).float()


MODELS = {
    "llama": llama,
    "tied, one head of keys": lambda: llama(num_key_value_heads=1, tie_word_embeddings=True),
    "three heads share a head of keys": lambda: llama(
        hidden_size=96, num_attention_heads=6, num_key_value_heads=2
    ),
    "heads of 80": lambda: llama(head_dim=80),
    "vocabulary of 7": lambda: llama(vocab_size=7),
    "linear rope": lambda: llama(rope_parameters=LINEAR),
    "llama3 rope": lambda: llama(rope_parameters=LLAMA3),
    "yarn rope": lambda: llama(rope_parameters=YARN),
    "bf16 weights": lambda: stored_as(torch.bfloat16),
    "fp16 weights": lambda: stored_as(torch.float16),
    "mistral": mistral,
    "qwen2, biases": qwen2,
    "qwen3, norms of queries and keys": qwen3,
}


def rounded(values: Tensor, together: int) -> Tensor:
    """Round to whole multiples of a scale per block of neighbours, of which the largest becomes 127."""
    blocks = values.unflatten(-1, (-1, together))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / scale.clamp_min(1e-30)).round() * scale).flatten(-2)


def in_pieces(runner: Runner, text: Sequence[int], size: int) -> Tensor:
    """Logits after every token of a text that is fed `size` tokens at a time."""
    slot, logits_of_pieces = runner.acquire(), []
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        logits_of_pieces.append(runner.forward([Append(slot, piece, keep=len(piece))])[0].clone())
        runner.commit(slot, range(len(piece)))
    runner.release(slot)
    return torch.cat(logits_of_pieces)


def in_a_tree(runner: Runner, text: Sequence[int], first: int) -> Tensor:
    """Return the logits from `first` on, as a path of a tree of three siblings a level, beside two others' rows."""
    slots = [runner.acquire() for _ in range(3)]
    for slot, length in zip(slots, (first + 3, first, 5), strict=True):
        runner.forward([Append(slot, text[:length])])
        runner.commit(slot, range(length))
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for token in text[first : first + 10]:
        parents += [path[-1] if path else -1] * 3
        tokens += [1, 2, token]
        path.append(len(tokens) - 1)
    rows = [
        Append(slots[0], [3, 4], keep=2),
        Append(slots[1], tokens, parents, keep=30),
        Append(slots[2], [5]),
    ]
    tree_logits = runner.forward(rows)[1][path].clone()
    runner.commit(slots[1], path)
    after = runner.forward([Append(slots[1], text[first + 10 : first + 12], keep=2)])[0]
    for slot in slots:
        runner.release(slot)
    return torch.cat((tree_logits, after))


def builds() -> Iterator[str]:
    """Yield the builds of the native executor that were compiled and that this processor runs."""
    level = library._level()
    for name, needed in library.BUILDS.items():
        if library.LEVELS.index(needed) <= level and any(library._find(name)):
            yield name
