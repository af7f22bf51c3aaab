"""Settings of a model's generation config that this kit does not apply."""

import json
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
"""Fields that change the tokens of greedy `generate`, and the values at which they change nothing."""


def ignored_settings(config: Any) -> dict[str, str]:
    """Return the fields that a generation config sets and the kit ignores, with their values, long ones cut."""
    values = {name: getattr(config, name, None) for name in NEUTRAL}
    return {name: _shown(value) for name, value in values.items() if value not in (None, [], NEUTRAL[name])}


def _shown(value: Any, most: int = 40) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[:most]}..."
