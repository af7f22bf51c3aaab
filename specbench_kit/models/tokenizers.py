"""Checks that the tokenizers of a target and a draft agree."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.core.errors import SkitError


def differ(target: Any, draft: Any) -> bool:
    """Return True if two tokenizers differ in more than added tokens, so that ids of one mean nothing to the other."""
    tokens = [_by_id(tokenizer.get_vocab()) for tokenizer in (target, draft)]
    added = [set(tokenizer.get_added_vocab().values()) for tokenizer in (target, draft)]
    shared = tokens[0].keys() & tokens[1].keys()
    alone = [own.keys() - shared for own in tokens]
    renamed = any(tokens[0][token] != tokens[1][token] for token in shared)
    return renamed or not (alone[0] <= added[0] and alone[1] <= added[1])


def unshared(target: Any, draft: Any, names: tuple[str, str]) -> list[int]:
    """Return the added tokens that only one of two tokenizers has; any other difference is an error of one line."""
    if differ(target, draft):
        raise SkitError(
            f"the tokenizers of target '{names[0]}' and draft '{names[1]}' differ in more than added tokens: "
            "speculative decoding needs two models with one vocabulary"
        )
    return sorted(_by_id(target.get_vocab()).keys() ^ _by_id(draft.get_vocab()).keys())


def require_room(tokenizer: Any, label: str, vocabulary: int) -> None:
    """Refuse a model that has no logit, or no embedding, for a token that the target's tokenizer has."""
    largest = max(tokenizer.get_vocab().values())
    if vocabulary <= largest:
        raise SkitError(
            f"model '{label}' has a vocabulary of {vocabulary} tokens and the tokenizer's go up to {largest}: "
            "use a model that knows them all"
        )


def _by_id(vocabulary: Mapping[str, int]) -> dict[int, str]:
    return {number: token for token, number in vocabulary.items()}
