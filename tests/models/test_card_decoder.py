"""The few kernels of a Llama-like model compute what transformers' own code does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.cache_utils import DynamicCache

from specbench_kit.models.drafts.reduced import exit_early
from specbench_kit.models.executors.card_decoder import CardDecoder, is_computable

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
CONFIGURATIONS = [LlamaConfig, Qwen2Config, Qwen3Config]
ROWS, WIDTH = 2, 7


Forward = Callable[[Tensor, Tensor, Tensor], Any]


def make_model(
    kind: type[PretrainedConfig], dtype: torch.dtype = torch.float32, **changes: object
) -> PreTrainedModel:
    """A model whose norms and biases are not what they begin with."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**(SIZES | changes))).to(dtype).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.rand_like(parameter))
    return model


def computed(forward: Forward, dtype: torch.dtype) -> Any:
    """The result of a forward of some tokens, of which each attends to those before it that are not two before it."""
    torch.manual_seed(1)
    tokens = torch.randint(0, SIZES["vocab_size"], (ROWS, WIDTH))
    positions = torch.arange(WIDTH)[None].expand(ROWS, -1)
    visible = torch.tril(torch.ones(WIDTH, WIDTH, dtype=torch.bool))
    visible &= ~torch.diag(torch.ones(WIDTH - 2, dtype=torch.bool), -2)
    mask = torch.zeros(ROWS, 1, WIDTH, WIDTH, dtype=dtype).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )
    with torch.inference_mode():
        return forward(tokens, positions, mask)


def by_transformers(model: PreTrainedModel) -> Forward:
    def forward(tokens: Tensor, places: Tensor, mask: Tensor) -> Any:
        options = {"past_key_values": DynamicCache(), "output_hidden_states": True}
        return model(input_ids=tokens, position_ids=places, attention_mask=mask, **options)

    return forward


def by_decoder(model: PreTrainedModel, layers: tuple[int, ...] = (), first: int = 0) -> Forward:
    return lambda tokens, places, mask: CardDecoder(model)(
        tokens, places, mask, DynamicCache(), layers, first
    )


@pytest.mark.parametrize("kind", [*CONFIGURATIONS, MistralConfig])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_logits_and_hidden_states_of_every_layer(
    kind: type[PretrainedConfig], dtype: torch.dtype, tolerance: float
) -> None:
    """A norm in bf16 rounds twice in transformers, and once here."""
    model = make_model(kind, dtype, **({"sliding_window": None} if kind is MistralConfig else {}))
    assert is_computable(model)
    expected = computed(by_transformers(model), dtype)
    layers = (0, 1, 2, 3)
    logits, hidden = computed(by_decoder(model, layers), dtype)
    scale = float(expected.logits.abs().max())
    torch.testing.assert_close(logits, expected.logits, atol=tolerance * scale, rtol=0)
    for layer in layers:
        states = expected.hidden_states[layer]
        torch.testing.assert_close(
            hidden[layer], states, atol=tolerance * float(states.abs().max()), rtol=0
        )
    tail, _ = computed(by_decoder(model, first=4), dtype)
    torch.testing.assert_close(tail, logits[:, 4:], atol=tolerance * scale, rtol=0)


def test_the_model_keeps_its_weights_and_memory() -> None:
    model = make_model(Qwen2Config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    logits = computed(by_transformers(model), torch.float32).logits
    decoders = [CardDecoder(model), CardDecoder(model), CardDecoder(exit_early(model, 1))]
    assert torch.equal(computed(by_transformers(model), torch.float32).logits, logits)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    attention = model.model.layers[0].self_attn
    storages = {
        product.weight.untyped_storage().data_ptr()
        for product in (attention.q_proj, attention.k_proj)
    }
    merged = {
        decoder._layers[0]._projections[0].untyped_storage().data_ptr() for decoder in decoders
    }
    assert storages == merged, "one copy, which the model and all its decoders read"
    with torch.no_grad():
        attention.k_proj.weight.mul_(2)
    changed = computed(by_transformers(model), torch.float32).logits
    by_our_decoder, _ = computed(by_decoder(model), torch.float32)
    torch.testing.assert_close(by_our_decoder, changed)
    assert not torch.allclose(changed, logits)


def test_what_it_does_not_compute() -> None:
    quantised = make_model(LlamaConfig)
    quantised.config.quantization_config = {"quant_method": "int8"}
    adapted = make_model(LlamaConfig)
    adapted.model.layers[1].mlp.up_proj = torch.nn.Sequential(adapted.model.layers[1].mlp.up_proj)
    adapted.model.layers[1].mlp.up_proj.weight = None
    hooked = make_model(LlamaConfig)
    hooked.model.layers[0]._hf_hook = object()
    sliding = make_model(MistralConfig, sliding_window=16)
    assert not any(map(is_computable, (quantised, adapted, hooked, sliding)))
