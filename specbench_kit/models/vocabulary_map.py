"""The vocabularies of target and draft: whether they agree, and how tokens and texts are translated
if they do not.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4): the draft's
distribution is restricted to the tokens that both tokenizers have. Verification reads the
restricted distribution, so every rule stays lossless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.base import Executor, Forward, Row
from specbench_kit.models.runner import Append, GrownBy, Runner


def differ(target: Any, draft: Any) -> bool:
    """Return True if two tokenizers differ in more than added tokens, so that ids of one mean
    nothing to the other.
    """
    tokens = [_by_id(tokenizer.get_vocab()) for tokenizer in (target, draft)]
    added = [set(tokenizer.get_added_vocab().values()) for tokenizer in (target, draft)]
    shared = tokens[0].keys() & tokens[1].keys()
    alone = [own.keys() - shared for own in tokens]
    renamed = any(tokens[0][token] != tokens[1][token] for token in shared)
    return renamed or not (alone[0] <= added[0] and alone[1] <= added[1])


def unshared(target: Any, draft: Any, names: tuple[str, str]) -> list[int]:
    """Return the added tokens that only one of two tokenizers has; any other difference is an error
    of one line.
    """
    if differ(target, draft):
        raise SkitError(
            f"the tokenizers of target '{names[0]}' and draft '{names[1]}' differ in more than added tokens: "
            "speculative decoding needs two models with one vocabulary"
        )
    return sorted(_by_id(target.get_vocab()).keys() ^ _by_id(draft.get_vocab()).keys())


def require_room(tokenizer: Any, label: str, vocabulary: int) -> None:
    """Refuse a model that has no logit, or no embedding, for a token that the target's tokenizer
    has.

    A token that only pads batches is none of them: people add one to a tokenizer and leave the
    model as it is, and nothing here pads.
    """
    largest = max(
        number for number in tokenizer.get_vocab().values() if number != _padding(tokenizer)
    )
    if vocabulary <= largest:
        raise SkitError(
            f"model '{label}' has a vocabulary of {vocabulary} tokens and the tokenizer's go up to {largest}: "
            "use a model that knows them all"
        )


def _padding(tokenizer: Any) -> int | None:
    """Return the token that pads and does nothing else; None if there is none."""
    others = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    return None if tokenizer.pad_token_id in others else tokenizer.pad_token_id


def _by_id(vocabulary: Mapping[str, int]) -> dict[int, str]:
    return {number: token for token, number in vocabulary.items()}


BELOW = 30.0
"""How far the logit of an unshared token lies below the draft's smallest: minus infinity would make
statistics NaN.
"""


@dataclass(frozen=True)
class VocabularyMap:
    """The tokens of a target in the vocabulary of its draft model.

    `shared` maps the target's tokens to the draft's where both tokenizers have the same text. `read_as` [target tokens]
    is what the draft reads in place of every token of the target: the shared token, or for any other the last token of
    its text as the draft's tokenizer splits it.
    """

    shared: dict[int, int]
    read_as: tuple[int, ...]
    texts: "Texts | None" = field(default=None, compare=False)
    """The tokenizers, for drafters that exchange text."""

    @property
    def share(self) -> float:
        """Return the part of the target's vocabulary that is shared."""
        return len(self.shared) / len(self.read_as)


def map_vocabulary(target: Any, draft: Any, names: tuple[str, str]) -> VocabularyMap:
    """Return how the vocabularies of two tokenizers correspond; SkitError if they share no token.

    Tokens are equal if their texts are, after the draft's sign for a space at the beginning is
    replaced by the target's.
    """
    signs = _space_sign(target), _space_sign(draft)
    own = {_respaced(token, signs): number for token, number in draft.get_vocab().items()}
    by_id = {number: token for token, number in target.get_vocab().items()}
    shared = {number: own[token] for number, token in by_id.items() if token in own}
    if not shared:
        raise SkitError(
            f"the tokenizers of target '{names[0]}' and draft '{names[1]}' share no token: name another draft"
        )
    read_as = [shared.get(number, -1) for number in range(max(by_id) + 1)]
    for number, read in enumerate(read_as):
        if read < 0:
            pieces = draft(target.decode([number]), add_special_tokens=False)["input_ids"]
            read_as[number] = pieces[-1] if pieces else next(iter(shared.values()))
    return VocabularyMap(shared, tuple(read_as), Texts(target, draft))


UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Stands in a text for bytes that are not a character, or not yet."""


class Texts:
    """What a text of one tokenizer's tokens is in the tokens of the other."""

    def __init__(self, target: Any, draft: Any) -> None:
        self._target = target
        self._draft = draft
        self.ends = frozenset(draft.all_special_ids) - {draft.unk_token_id}
        """Tokens of the draft's vocabulary after which no text follows."""
        # A tokenizer adds its sign for the beginning to a text by itself, which is in the target's
        # text already if it has one.
        begin = draft.bos_token_id
        added = draft("")["input_ids"]
        self._begin = [begin] if begin is not None and added[:1] == [begin] else []

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft's tokens for the text of some of the target's; none if it ends within a
        character.
        """
        text = _text(self._target, tokens)
        if text.endswith(UNFINISHED):
            return []
        begin = (
            [] if self._begin and text.startswith(self._draft.decode(self._begin)) else self._begin
        )
        return [*begin, *_tokens(self._draft, text)]

    def to_target(self, before: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Return the target's tokens for what the draft says after the target's tokens `before`.

        A character that is unfinished, and all behind it, is left out.
        """
        text = _text(self._draft, [token for token in drafted if token not in self.ends]).partition(
            UNFINISHED
        )[0]
        # The text before may decide how a text is split, unless its own tokens are not what the
        # tokenizer makes of it.
        together = _tokens(self._target, _text(self._target, before) + text)
        follows = together[: len(before)] == list(before)
        tokens = together[len(before) :] if follows else _tokens(self._target, text)
        end = self._end_of_target(drafted)
        return [*tokens, end] if end is not None else tokens

    def _end_of_target(self, drafted: Sequence[int]) -> int | None:
        """Return the target's token of the same text as the sign with which a draft ends, if it has
        both.
        """
        if not drafted or drafted[-1] not in self.ends:
            return None
        name = self._draft.convert_ids_to_tokens(drafted[-1])
        token = self._target.convert_tokens_to_ids(name)
        return (
            token
            if token is not None and self._target.convert_ids_to_tokens(token) == name
            else None
        )


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(
        tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


def _tokens(tokenizer: Any, text: str) -> list[int]:
    numbers: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return numbers


class TranslatingRunner(Runner):
    """Runs a draft model on the target's tokens: translates what it reads, and restricts what it
    drafts.
    """

    def __init__(self, executor: Executor, translation: VocabularyMap, vocabulary: int) -> None:
        super().__init__(executor)
        self.vocabulary = vocabulary
        self.takes_pending = False
        self.grows_trees = False
        self.texts = translation.texts
        self._read_as = translation.read_as
        pairs = [pair for pair in translation.shared.items() if pair[0] < vocabulary]
        self._targets, self._drafts = torch.tensor(pairs, device=executor.device).T

    def forward(
        self,
        rows: Sequence[Append],
        layers: Sequence[int] = (),
        extra_rows: Sequence[Row] = (),
        trees: GrownBy | None = None,
    ) -> Forward:
        """Append every row's tokens in the draft's vocabulary; logits are those of the target's
        vocabulary. `trees` do not grow ahead, as their tokens would have to be translated.
        """
        appended = [replace(row, tokens=self._translated(row.tokens)) for row in rows]
        extra = [row._replace(tokens=self._translated(row.tokens)) for row in extra_rows]
        own = super().forward(appended, layers, extra)
        return Forward(
            [self._restricted(own[row]) for row in range(len(rows) + len(extra_rows))],
            padding=own.padding,
        )

    def forward_own(self, rows: Sequence[Append]) -> Forward:
        """Append tokens of the draft's own vocabulary; logits are those of that vocabulary."""
        return super().forward(rows)

    def _translated(self, tokens: Sequence[int]) -> list[int]:
        return [
            self._read_as[token] if token < len(self._read_as) else self._read_as[0]
            for token in tokens
        ]

    def _restricted(self, logits: Tensor) -> Tensor:
        """Return logits [kept, vocabulary] of the target's tokens, of which unshared ones are as
        good as ruled out.
        """
        floor = logits.amin(-1, keepdim=True) - BELOW
        restricted = floor.expand(-1, self.vocabulary or 0).clone()
        restricted[:, self._targets] = logits[:, self._drafts]
        return restricted


def _space_sign(tokenizer: Any) -> str:
    """Return the character that stands for a space at the beginning of a token; empty if there is
    none.
    """
    numbers = tokenizer(" ", add_special_tokens=False)["input_ids"]
    return str(tokenizer.convert_ids_to_tokens(numbers)[0][0]) if numbers else ""


def _respaced(token: str, signs: tuple[str, str]) -> str:
    """Return a draft's token with the target's sign for a space at its beginning."""
    target, draft = signs
    return (
        target + token[1:]
        if target and draft and target != draft and token.startswith(draft)
        else token
    )
