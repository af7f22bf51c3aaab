"""Grammars over a handful of tokens, and what a model writes under them, computed without the kit's masks."""

from collections.abc import Sequence
from functools import cache

import torch
from tiny_models import plain_logits
from tiny_tokenizers import byte_pairs
from torch import Tensor
from transformers import PreTrainedModel

from specbench_kit.decoding.constraint import Constraint, Grammars, parse_constraint

PIECES = ["a", "b", "c", "d", "<end>"]
TOKENS = [*PIECES, "ab"]
"""The text of each token."""
END = PIECES.index("<end>")
VOCABULARY = len(TOKENS)


def compiler() -> Grammars:
    """Return a new compiler for the tokenizer of these pieces."""
    return Grammars(byte_pairs([("a", "b")], PIECES), [END])


@cache
def grammars() -> Grammars:
    """Return the compiler that all tests of a process share."""
    return compiler()


def constraint(spec: str) -> Constraint:
    """Return the constraint of a grammar, such as `regex:a+`."""
    return grammars().compile(parse_constraint(spec))


def text(tokens: Sequence[int]) -> str:
    """Return the text of an output without its end token."""
    return "".join(TOKENS[token] for token in tokens if token != END)


def allowed_by(texts: Sequence[str], tokens: Sequence[int]) -> list[int]:
    """Return the tokens that may follow `tokens` if the output is to be one of `texts`, a finite language."""
    so_far = text(tokens)
    if END in tokens:
        return []
    return [
        token
        for token, piece in enumerate(TOKENS)
        if (so_far in texts if token == END else any(t.startswith(so_far + piece) for t in texts))
    ]


def masked_logits(
    model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int], texts: Sequence[str]
) -> Tensor:
    """Return a model's logits of the next token, with those that lead to none of the texts at minus infinity."""
    logits = plain_logits(model, [*prompt, *output])[-1]
    allowed = torch.tensor(allowed_by(texts, output))
    return torch.full_like(logits, -torch.inf).index_copy(0, allowed, logits[allowed])


def masked_greedy(
    model: PreTrainedModel, prompt: Sequence[int], texts: Sequence[str], count: int
) -> list[int]:
    """Return the likeliest output of at most `count` tokens that begins one of the texts."""
    output: list[int] = []
    while len(output) < count and END not in output:
        output.append(int(masked_logits(model, prompt, output, texts).argmax()))
    return output
