"""What transformers does not take from a GGUF file, set as llama.cpp reads it: rope scaling, end tokens, tokenizer.

Each would change the answers without a word.
"""

import json
from collections.abc import Set
from math import log
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.models.gguf_content import INSTEAD, Metadata

DIGIT_BY_DIGIT = frozenset({"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"})
"""Rules that separate every digit from its neighbours, and then split as GPT-2 does."""
AS_GPT_2 = frozenset(
    {"", "default", "gpt-2", "jais", "jina-de", "jina-es", "jina-v2-de", "jina-v2-es", "mpt", "olmo", "phi-2"}
    | {"roberta-bpe", "trillion"}
)
"""Rules under which transformers' tokenizer is right as it is."""
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The parameters, beside `factor`, of all published models with Llama 3's scaling; the file holds its result alone."""
PLAIN_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Architectures whose tensors and weights correspond one to one."""


def require_all_weights(name: str, weights: Set[str], tensors: Set[str], missing: list[str]) -> None:
    """Raise SkitError if transformers filled weights at random, or if the file's tensors are not those of the model.

    `tensors` are named like the weights; they are empty for an architecture whose tensors are not the weights.
    """
    missing = missing or sorted(weights - tensors if tensors else ())
    require(not missing, f"'{name}' lacks tensors: {min(missing, default='')} would be random; {INSTEAD}")
    unknown = tensors - weights
    require(
        not unknown,
        f"'{name}' holds tensors that its architecture lacks in transformers: {', '.join(sorted(unknown))}; {INSTEAD}",
    )


def correct_rope(name: str, config: Any, metadata: Metadata) -> None:
    """Write the scaling of rotary frequencies that the file states into a configuration."""
    scaling = _scaling(config, metadata)
    if scaling is None:
        return
    rope = getattr(config, "rope_parameters", None) or {}
    kind = scaling["rope_type"]
    require("rope_theta" in rope, f"'{name}' scales rotary frequencies ({kind}) of a kind that is not known: {INSTEAD}")
    if rope.get("rope_type", "default") == "default":
        config.rope_parameters = {"rope_theta": rope["rope_theta"], **scaling}
    if metadata.rope_factors:
        _require_factors(name, config, metadata.rope_factors)


def _scaling(config: Any, metadata: Metadata) -> dict[str, Any] | None:
    """Return rope parameters in the names of transformers; None without scaling."""
    if metadata.rope_factors and max(metadata.rope_factors) > 1:
        return {"rope_type": "llama3", "factor": max(metadata.rope_factors), **LLAMA_3}
    stated = metadata.rope_scaling
    kind, factor = str(stated.get("type", "none")), float(stated.get("factor", 1))
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    if kind != "yarn":
        raise SkitError(f"rotary frequencies scaled by '{kind}' cannot be converted: {INSTEAD}")
    length = stated.get("original_context_length", config.max_position_embeddings)
    own_names = {"attention_factor": "attn_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    others = {name: float(stated[own]) for name, own in own_names.items() if own in stated}
    if "attention_factor" in others:  # llama.cpp multiplies it by the factor that transformers takes without one
        others["attention_factor"] *= 1 + 0.1 * log(factor)
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": int(length), **others}


def _require_factors(name: str, config: Any, factors: tuple[float, ...]) -> None:
    """Raise SkitError if the scaling of a configuration does not divide the frequencies by the file's factors."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(len(scaled)) / len(scaled)
    plain = config.rope_parameters["rope_theta"] ** -exponents.double()
    require(
        len(factors) == len(scaled)
        and torch.allclose(plain / scaled.double(), torch.tensor(factors, dtype=torch.float64), rtol=1e-3),
        f"'{name}' scales rotary frequencies by factors that are not Llama 3's: {INSTEAD}",
    )


def correct_ends(generation: Any, metadata: Metadata) -> None:
    """Let the tokens that end a turn or a message end an answer too, as in llama.cpp."""
    ends = generation.eos_token_id
    own = set(ends) if isinstance(ends, list) else {ends} - {None}
    if own | set(metadata.end_tokens):
        generation.eos_token_id = sorted(own | set(metadata.end_tokens))


def correct_tokenizer(name: str, tokenizer: Any, metadata: Metadata) -> None:
    """Let a tokenizer begin texts and split them as the file says."""
    if metadata.tokenizer == "gpt2":
        _correct_splitting(name, tokenizer, metadata.text_splitting)
    if metadata.adds_bos:
        _add_bos(tokenizer)


def _correct_splitting(name: str, tokenizer: Any, rule: str) -> None:
    from tokenizers import pre_tokenizers

    if rule in DIGIT_BY_DIGIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
        return
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an earlier version, which does not list what it knows
        return
    require(
        rule in AS_GPT_2 or rule in GGUF_PRE_TOKENIZER_SPLITS,
        f"'{name}' splits text by the rule '{rule}', which is not known here: {INSTEAD}",
    )


def _add_bos(tokenizer: Any) -> None:
    """Let a tokenizer put the beginning-of-sequence token first, which transformers does not read from the file."""
    from tokenizers.processors import TemplateProcessing

    bos, bos_id = tokenizer.bos_token, tokenizer.bos_token_id
    if bos_id is None or tokenizer("a")["input_ids"][:1] == [bos_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )


def drop_added_tokens(path: Path, vocabulary: int) -> None:
    """Remove tokens that the model does not have: transformers adds a default for one that a file does not name."""
    content = json.loads(path.read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(content, ensure_ascii=False))
