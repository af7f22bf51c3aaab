"""The tokens that end an answer: those that a model states, and control tokens whose name says that a text ends."""

from collections.abc import Iterable, Sequence
from typing import Any

ENDS = frozenset({
    "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>",
    "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>", "[e~[",
})  # fmt: skip
"""Names of control tokens after which a text, a turn or a message is over, whatever a generation config leaves out."""
FILE_ENDS = frozenset({
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
})  # fmt: skip
"""Names of control tokens with which code models begin another file or repository, so that this text is over."""
GOES_ON = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}),
)
"""Tokens that end only a part of an answer in vocabularies that have all of the other tokens."""


def end_tokens(stated: int | Sequence[int] | None, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end an answer, as llama.cpp chooses them.

    They are the `stated` ones of a generation config, the tokenizer's own end and, since files and configs often name
    only one of several, the control tokens whose names are known to end a text. An empty list states that no token
    ends an answer.
    """
    if stated == []:
        return frozenset()
    own = {*_as_list(stated), *_as_list(tokenizer.eos_token_id)}
    return frozenset(own | _named_ends(tokenizer))


def _named_ends(tokenizer: Any) -> set[int]:
    control = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    continuing = {name for name, others in GOES_ON if others <= control.keys()}
    return {number for name, number in control.items() if name in (ENDS | FILE_ENDS) - continuing}


def _as_list(ids: int | Iterable[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
