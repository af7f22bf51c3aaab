"""What the shapes of the architecture cards count, against the numbers that the models' makers publish."""

from typing import NamedTuple

import pytest

from specbench_kit.profilers.architectures import (
    Architecture,
    architecture_of_config,
    bundled_architectures,
)


class Published(NamedTuple):
    """Billions of weights as a maker prints them, and where; some are as others quote that source.

    `tables` says how many of embeddings and output layer the active weights count; makers differ.
    """

    total: str
    source: str
    active: str = ""
    tables: int = 1


GPT_OSS = "model card of gpt-oss (arXiv 2508.10925), table 1"
PUBLISHED = {
    "gpt-oss-120b": Published("116.83", GPT_OSS, "5.13"),
    "gpt-oss-20b": Published("20.91", GPT_OSS, "3.61"),
    "deepseek-v3": Published("671", "DeepSeek-V3 technical report (arXiv 2412.19437)", "37"),
    "kimi-k2": Published("1040", "Kimi K2 technical report (arXiv 2507.20534)", "32.6", 2),
    "qwen3-next-80b-a3b": Published("80", "page of Qwen3-Next-80B-A3B-Instruct", "3", 0),
    "qwen3.5-397b-a17b": Published("397", "page of Qwen3.5-397B-A17B", "17", 2),
    "qwen3.5-27b": Published("27", "page of Qwen3.5-27B", tables=2),
    "qwen3-235b-a22b": Published("235", "page of Qwen3-235B-A22B", "22"),
    "qwen3-30b-a3b": Published("30.5", "page of Qwen3-30B-A3B", "3.3", 2),
    "glm-4.5-air": Published("106", "GLM-4.5 technical report (arXiv 2508.06471)", "12", 0),
    "minimax-m2": Published("229.9", "MiniMax-M2 report", "9.8", 0),
    "minimax-m3": Published("428", "page of MiniMax-M3", "23", 0),
    "kimi-k2.5": Published("1040", "Kimi K2 technical report, whose shapes it has", "32.6", 2),
    "glm-5": Published("744", "GLM-5 technical report (zai-org)", "40", 0),
    "glm-5.2": Published("744", "page of GLM-5.2, as GLM-5", "40", 0),
    "llama4-scout": Published("109", "page of Llama-4-Scout-17B-16E", "17", 2),
    "gemma3-27b": Published("27", "Gemma 3 technical report (arXiv 2503.19786), without images"),
    "mistral-small-24b": Published("23.6", "page of Mistral-Small-24B-Instruct-2501"),
    "llama3.1-405b": Published("405", "The Llama 3 herd of models (arXiv 2407.21783)"),
    "qwen2.5-72b": Published("72.7", "page of Qwen2.5-72B"),
    "qwen2.5-32b": Published("32.5", "page of Qwen2.5-32B"),
    "qwen2.5-14b": Published("14.7", "page of Qwen2.5-14B"),
    "qwen2.5-7b": Published("7.61", "page of Qwen2.5-7B"),
    "qwen2.5-coder-1.5b": Published("1.54", "page of Qwen2.5-Coder-1.5B"),
    "qwen2.5-coder-0.5b": Published("0.49", "page of Qwen2.5-Coder-0.5B"),
    "llama2-70b": Published("70", "Llama 2 (arXiv 2307.09288)"),
    "llama2-13b": Published("13", "Llama 2 (arXiv 2307.09288)"),
    "tinyllama-1.1b": Published("1.1", "TinyLlama (arXiv 2401.02385)"),
}
SHARE = 0.03
MADE_OF_OTHERS = {"qwen3-32b-4bit", "vicuna-7b"}
"""Cards of the same shapes as another one."""


def _meets(counted: int, printed: str) -> bool:
    """Return whether a count is within 3 % of a printed number, or rounds to it: 3 stands for all from 2.5 to 3.5."""
    digits = len(printed.partition(".")[2])
    billions, published = counted / 1e9, float(printed)
    return abs(billions - published) <= max(SHARE * published, 0.5 * 10**-digits)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_card_counts_the_weights_that_its_maker_publishes(name: str) -> None:
    shapes, published = bundled_architectures()[name], PUBLISHED[name]
    assert _meets(shapes.parameters, published.total), (shapes.parameters, published)
    if published.active:
        active = shapes.layer_parameters + published.tables * shapes.head_parameters
        assert _meets(active, published.active), (active, published)


def test_every_card_is_held_against_what_is_published() -> None:
    from test_cards import BILLIONS

    assert set(bundled_architectures()) == {*PUBLISHED, *BILLIONS} | MADE_OF_OTHERS


READ = {
    "gpt-oss-120b": ("gpt_oss", {}),
    "deepseek-v3": ("deepseek_v3", {"max_position_embeddings": 163840}),
    "qwen3-next-80b-a3b": ("qwen3_next", {"max_position_embeddings": 262144}),
    "glm-4.5-air": ("glm4_moe", {"head_dim": 128}),
    "minimax-m2": ("minimax_m2", {}),
    "glm-5": ("glm_moe_dsa", {}),
    "qwen3.5-397b-a17b": (
        "qwen3_5_moe_text",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 60,
            "num_attention_heads": 32,
            "linear_num_value_heads": 64,
            "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "max_position_embeddings": 262144,
        },
    ),
    "gemma3-27b": (
        "gemma3_text",
        {
            "hidden_size": 5376,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "intermediate_size": 21504,
            "vocab_size": 262208,
            "sliding_window": 1024,
        },
    ),
}
"""Cards whose model type transformers builds, with what differs from its default configuration."""


@pytest.mark.parametrize("name", READ)
def test_a_model_of_the_same_configuration_has_as_many_weights(name: str) -> None:
    """The matrices that transformers makes of a configuration are those that the card counts, one by one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, changes = READ[name]
    config = AutoConfig.for_model(family, **changes)
    card = bundled_architectures()[name]
    read = architecture_of_config(config)
    assert read is not None
    assert _shapes(read) == _shapes(card)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = sum(
        weight.numel()
        for label, weight in model.named_parameters()
        if weight.ndim > 1 and "bias" not in label and "shared_expert_gate" not in label
    )
    assert card.parameters == matrices


def _shapes(card: Architecture) -> dict[str, object]:
    """Return the fields of a card but its precision, and the size of dense layers where it has none."""
    fields = card.describe()
    dense = bool(card.dense_layers) or not card.experts
    left_out = {"weight_bits", "expert_bits", "computed_in"} | (
        set() if dense else {"intermediate_size"}
    )
    return {name: value for name, value in fields.items() if name not in left_out}
