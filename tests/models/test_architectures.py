"""Every causal language model of the installed transformers gives its own tokens, or is refused in one line."""

from typing import Any

import pytest
import torch
from tiny_models import (
    decode,
    disturbed,
    fill,
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    random_prompts,
)
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method

TOKENS = 12
PROMPT_LENGTHS = [9, 3, 14]
MOST_PARAMETERS = 8e6
"""Models that are larger although every known size is small cannot be made tiny in the way of this file."""

WIDTHS = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 64),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "embedding_size"), 32
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "mlp_hidden_size"),
        48,
    ),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(
        ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "hidden_size_per_layer_input"), 8
    ),
    **dict.fromkeys(("rotary_dim", "attention_head_size"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "global_head_dim"), 16),
    "v_head_dim": 12,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    "sliding_window": 6,
}
COUNTS = {
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "decoder_layers",
            "encoder_layers",
        ),
        2,
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("num_kv_shared_layers", "pad_token_id"), 0),
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_group": 1, "n_group": 1},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2, "num_experts": 4},
    "ministral": {"head_dim": 8},
}
"""Sizes that a configuration leaves open and its model needs."""

LATENT = ["deepseek_v2", "deepseek_v3", "minicpm3", "youtu"]
"""Models whose keys and values are of different widths."""
SAME = [*LATENT, "gemma4_text", "qwen3_moe", "moshi"]
"""Beside them: a head size that differs by layer, experts, and a window in the configuration that no code applies."""
REFUSED = ["bert", "roberta", "mamba", "openai-gpt"]
"""Models that attend to later tokens, number positions otherwise, keep a state, or lay their cache out otherwise."""


def tiny_config(name: str) -> PretrainedConfig:
    """Return a configuration of a type of model in which every size that this file knows is small."""
    config = AutoConfig.for_model(name).get_text_config()
    own = config.to_dict()
    sizes: dict[str, Any] = {
        size: value
        for size, value in {**WIDTHS, **COUNTS}.items()
        if isinstance(own.get(size), int)
    }
    if (
        "qk_rope_head_dim" in own
    ):  # latent attention: every head has a key of its own, made of two parts
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if own.get("layer_types"):
        kinds = list(dict.fromkeys(own["layer_types"]))
        sizes["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        sizes |= {
            size: len(sizes["layer_types"])
            for size in ("num_hidden_layers", "n_layer")
            if size in sizes
        }
    return type(config)(**(sizes | OWN.get(name, {})))


def tiny_model(config: PretrainedConfig) -> PreTrainedModel:
    """Return a model with random weights; ValueError if it is not tiny."""
    with torch.device("meta"):
        size = sum(
            weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters()
        )
    if size > MOST_PARAMETERS:
        raise ValueError(f"the model has {size} parameters")
    return fill(AutoModelForCausalLM.from_config(config), 0, 0.15)


def check(model: PreTrainedModel) -> None:
    """Compare chains and trees in a batch with the greedy tokens of the model itself, which are computed anew each."""
    prompts = random_prompts(PROMPT_LENGTHS, 64)
    requests = make_requests(prompts, TOKENS)
    answers = {
        request.id: plain_greedy(model, request.prompt_ids, TOKENS)[0] for request in requests
    }
    runners = make_runner(model, 3, 64), make_runner(disturbed(model, 0.003), 3, 64)
    for spec in ("autoregressive", "specinfer:branching=2-1-2"):
        assert outputs(decode(parse_method(spec), runners, requests, batch_size=3)) == answers, spec


@pytest.mark.parametrize("name", SAME)
def test_models_of_today_give_their_own_tokens(name: str) -> None:
    check(tiny_model(tiny_config(name)))


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_attend_otherwise_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(
        SkitError, match=r"^models of type '\S+' cannot be run: [^\n]+; use another model$"
    ):
        make_runner(tiny_model(tiny_config(name)), 1, 64)


def test_a_decoder_that_numbers_positions_from_its_padding_is_refused() -> None:
    config = tiny_config("roberta")
    config.is_decoder = True
    with pytest.raises(SkitError, match=r"^models of type 'roberta' cannot be run: [^\n]+$"):
        make_runner(tiny_model(config), 1, 64)


def test_too_little_memory_is_not_put_down_to_the_kind_of_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model(tiny_config("qwen3_moe"))

    def out_of_memory(**_inputs: object) -> None:
        raise torch.OutOfMemoryError("the card is full")

    monkeypatch.setattr(model.model, "forward", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError, match="the card is full"):
        make_runner(model, 1, 64)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*SAME, *REFUSED}))
def test_every_causal_model_gives_its_own_tokens_or_is_refused(name: str) -> None:
    try:
        model = tiny_model(tiny_config(name))
        plain_greedy(model, [1, 2, 3], 1)
    except (
        Exception
    ) as error:  # whatever a configuration that lacks a size makes transformers raise
        pytest.skip(f"cannot be made tiny: {type(error).__name__}")
    refusal = ""
    try:
        make_runner(model, 1, 64)
    except SkitError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
    else:
        check(model)
