"""The tokens of Hugging Face `generate`, for every architecture, and the rounds of its assisted generation."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    fill,
    make_requests,
    make_runner,
    outputs,
    plain_logits,
    random_prompts,
    tiny_llama,
)
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import bundled_pairs
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append

VOCABULARY = 4096
"""That of the bundled tokenizer, which the saved models share."""
PADDED = {"vocab_size": VOCABULARY + 32}
"""Of models whose class of tokenizer adds a token of its own."""
TOKENS = 20
WINDOW = 7
LENGTHS = [1, 30, 6, 17, 70]

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Architecture:
    """A transformers class prefix and what its config adds."""

    prefix: str
    options: dict[str, Any]
    config: str = "Config"

    def build(self) -> PreTrainedModel:
        config = getattr(transformers, self.prefix + self.config)(**(SIZES | self.options))
        return fill(getattr(transformers, f"{self.prefix}ForCausalLM")(config), 0, 0.2)


ARCHITECTURES = {
    "llama": Architecture("Llama", {"tie_word_embeddings": True}),
    "llama, heads of 6": Architecture("Llama", {"head_dim": 6}),
    "mistral": Architecture("Mistral", {"sliding_window": WINDOW}),
    "mistral, no window": Architecture("Mistral", {"sliding_window": None, "head_dim": 12}),
    "qwen2": Architecture("Qwen2", PADDED),
    "qwen2, mixed": Architecture(
        "Qwen2",
        PADDED | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen2, all sliding": Architecture(
        "Qwen2",
        PADDED | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0},
    ),
    "qwen3, heads of 24": Architecture("Qwen3", PADDED | {"head_dim": 24}),
    "gemma, heads of 20": Architecture("Gemma", {"head_dim": 20}),
    "gemma2": Architecture(
        "Gemma2", {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
    ),
    "gemma3": Architecture(
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 3,
            "layer_types": ALTERNATING,
        },
        "TextConfig",
    ),
    "gpt2": Architecture("GPT2", {}),
    "gpt_neox": Architecture("GPTNeoX", {"num_key_value_heads": None}),
    "phi3": Architecture("Phi3", {"sliding_window": WINDOW}),
    "olmo2": Architecture("Olmo2", {}),
    "gpt_oss": Architecture(
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
}


def save(model: PreTrainedModel, folder: Path) -> str:
    """A model folder as users have it, with the bundled tokenizer."""
    model.save_pretrained(folder)
    for file in bundled_pairs()[0].target.glob("*token*"):
        shutil.copy(file, folder)
    return str(folder)


def generate(model: PreTrainedModel, prompt: list[int], **options: Any) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {
        "do_sample": False,
        "max_new_tokens": TOKENS,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **(settings | options))
    return list(out[0, len(prompt) :].tolist())


def _gpt2_build() -> PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=160,
        bos_token_id=0,
        eos_token_id=1,
    )
    return fill(transformers.GPT2LMHeadModel(config), 0, 0.2)


@pytest.mark.parametrize(
    "name",
    nightly_except(["llama", "gemma3", "gpt_oss"], ARCHITECTURES),
)
def test_every_architecture_equals_generate(name: str, tmp_path: Path) -> None:
    model = _gpt2_build() if name == "gpt2" else ARCHITECTURES[name].build()
    folders = save(model, tmp_path / "target"), save(disturbed(model, 0.002), tmp_path / "draft")
    pair = load_pair(*folders, device="cpu")
    loaded = pair.target.model
    assert pair.target.context == 160
    prompts = clear_prompts(loaded, LENGTHS, TOKENS)
    expected = {f"{i:03}": generate(loaded, prompt) for i, prompt in enumerate(prompts)}
    runners = pair.runners(3, max(LENGTHS) + TOKENS)
    for batch_size in (1, 3):
        for spec in ("autoregressive", "fixed-k"):
            records = decode(
                parse_method(spec), runners, make_requests(prompts, TOKENS), batch_size=batch_size
            )
            assert outputs(records) == expected
    rounds = [step for record in records.values() for step in record.rounds]
    assert 0 < sum(step.accepted for step in rounds) < sum(step.submitted for step in rounds)


HALF = 4
"""Frequencies of a head of 8."""
TRAINED = 64
SCALED: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "proportional": {"partial_rotary_factor": 0.5},
    "yarn": {"factor": 2.5, "original_max_position_embeddings": TRAINED},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": {
        "short_factor": [1.0] * HALF,
        "long_factor": [4.0] * HALF,
        "original_max_position_embeddings": TRAINED,
    },
}


def scaled_llama(kind: str) -> PreTrainedModel:
    rope = {"rope_theta": 100.0} | SCALED[kind] | {"rope_type": kind}
    return Architecture("Llama", {"rope_parameters": rope}).build()


def test_every_rope_type_of_transformers_is_tried_here() -> None:
    assert set(SCALED) == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("kind", nightly_except(["dynamic", "yarn", "longrope"], SCALED))
def test_every_rope_type_equals_generate_whatever_else_is_in_the_batch(
    kind: str, tmp_path: Path
) -> None:
    """A prompt of 70 tokens is beyond what `longrope` was trained on, and is refused; it must not turn the others."""
    model = scaled_llama(kind)
    folder = save(model, tmp_path / "target")
    pair = load_pair(folder, folder, device="cpu")
    prompts = clear_prompts(model, [9, 70, 40], TOKENS)
    expected = {f"{i:03}": generate(model, prompt) for i, prompt in enumerate(prompts)}
    runners = pair.runners(3, 70 + TOKENS)
    for spec in ("autoregressive", "fixed-k"):
        records = decode(parse_method(spec), runners, make_requests(prompts, TOKENS), batch_size=3)
        if kind == "longrope":
            assert records["001"].error == "the prompt has 70 tokens; the context holds 1 to 63"
            records["001"].output_ids = expected["001"]
        assert outputs(records) == expected


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_draft_past_the_context_does_not_turn_its_neighbours(kind: str, tmp_path: Path) -> None:
    folder = save(scaled_llama(kind), tmp_path / "target")
    model = load_pair(folder, folder, device="cpu").target.model
    runner, (prompt,) = make_runner(model, 2, 200), random_prompts([20], VOCABULARY)
    long = runner.acquire()
    runner.forward([Append(long, [5] * 170)])
    together = runner.forward([Append(long, [7]), Append(runner.acquire(), prompt)])
    torch.testing.assert_close(together[1], plain_logits(model, prompt)[-1:], atol=1e-4, rtol=1e-4)


def test_end_of_sequence_equals_generate() -> None:
    model = tiny_llama(0)
    (prompt,) = clear_prompts(model, [9], TOKENS)
    free = generate(model, prompt)
    for end in free[3:8]:
        expected = generate(model, prompt, eos_token_id=end)
        assert expected[-1] == end
        runners = make_runner(model, 1, 128), make_runner(model, 1, 128)
        for spec in ("autoregressive", "fixed-k"):
            records = decode(
                parse_method(spec),
                runners,
                make_requests([prompt], TOKENS),
                eos_ids=frozenset({end}),
            )
            assert outputs(records)["000"] == expected


HEURISTIC = "threshold:adaptive=true,threshold=0.7,max_draft=6,schedule=heuristic-transient"
ASSISTED = {
    "fixed-k:k=5": ("constant", 5, 0.0),
    "threshold:adaptive=true": ("constant", 20, 0.4),
    HEURISTIC: ("heuristic_transient", 6, 0.7),
    "threshold:threshold=0,max_draft=3,schedule=heuristic-transient": (
        "heuristic_transient",
        3,
        0.0,
    ),
}
"""Our spec beside Hugging Face's schedule, draft length and confidence threshold."""


@pytest.mark.parametrize("spec", nightly_except(["fixed-k:k=5", HEURISTIC], ASSISTED))
def test_rounds_equal_assisted_generation(spec: str) -> None:
    """Both forward the target over as many drafted tokens in every round; theirs never passes the output limit."""
    target = tiny_llama(0, max_position_embeddings=512, bos_token_id=None, eos_token_id=None)
    draft = disturbed(target, 0.004)
    settings = draft.generation_config
    (
        settings.num_assistant_tokens_schedule,
        settings.num_assistant_tokens,
        settings.assistant_confidence_threshold,
    ) = ASSISTED[spec]
    prompts, count = clear_prompts(target, [12, 4, 30], 100), 100
    runners = make_runner(target, 1, 512), make_runner(draft, 1, 512)
    records = decode(parse_method(spec), runners, make_requests(prompts, count))
    plain = decode(AUTOREGRESSIVE, runners, make_requests(prompts, count))
    assert outputs(records) == outputs(plain)
    for name, prompt in zip(outputs(records), prompts, strict=True):
        widths: list[int] = []
        hook = target.register_forward_pre_hook(
            lambda _module, _args, kwargs, widths=widths: widths.append(
                kwargs["input_ids"].shape[1]
            ),
            with_kwargs=True,
        )
        theirs = generate(target, prompt, assistant_model=draft, max_new_tokens=count)
        hook.remove()
        assert records[name].output_ids == theirs
        submitted = [widths[0] - len(prompt), *(width - 1 for width in widths[1:])]
        ours = [
            min(step.submitted, room - 1)
            for step, room in zip(records[name].rounds, _rooms(records[name]), strict=True)
        ]
        assert ours == submitted


def _rooms(record: RequestRecord) -> list[int]:
    """Tokens still to come before each round."""
    rooms, room = [], len(record.output_ids)
    for step in record.rounds:
        rooms.append(room)
        room -= step.committed
    return rooms
