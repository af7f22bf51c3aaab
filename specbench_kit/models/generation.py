"""The generation settings of a model: the tokens that end an answer, and the settings that this kit
does not apply.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "guidance_scale": 1.0,
    "num_beams": 1,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "stop_strings": None,
    "watermarking_config": None,
    "penalty_alpha": None,
    "dola_layers": None,
}
"""Fields that change the tokens of greedy `generate`, and the values at which they change
nothing.
"""


def ignored_settings(config: Any) -> dict[str, str]:
    """Return the fields that a generation config sets and the kit ignores, with their values, long
    ones cut.
    """
    values = {name: getattr(config, name, None) for name in NEUTRAL}
    return {
        name: _shown(value)
        for name, value in values.items()
        if value not in (None, [], NEUTRAL[name])
    }


def _shown(value: Any, most: int = 40) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[:most]}..."


ENDS = frozenset({
    "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>",
    "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>", "[e~[",
})  # fmt: skip
"""Names of control tokens after which a text, a turn or a message is over, whatever a generation
config leaves out.
"""
FILE_ENDS = frozenset({
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
})  # fmt: skip
"""Names of control tokens with which code models begin another file or repository, so that this
text is over.
"""
GOES_ON = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}),
)
"""Tokens that end only a part of an answer in vocabularies that have all of the other tokens."""


def end_tokens(stated: int | Sequence[int] | None, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end an answer, as llama.cpp chooses them.

    They are the `stated` ones of a generation config, the tokenizer's own end and, since files and
    configs often name only one of several, the control tokens whose names are known to end a text.
    An empty list states that no token ends an answer.
    """
    if stated == []:
        return frozenset()
    own = {*_as_list(stated), *_as_list(tokenizer.eos_token_id)}
    return frozenset(own | _named_ends(tokenizer))


def _named_ends(tokenizer: Any) -> set[int]:
    control = {
        token.content: number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special
    }
    continuing = {name for name, others in GOES_ON if others <= control.keys()}
    return {number for name, number in control.items() if name in (ENDS | FILE_ENDS) - continuing}


def _as_list(ids: int | Iterable[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
