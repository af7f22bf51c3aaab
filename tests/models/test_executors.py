"""Executors agree with each other, and each model gets one that computes exactly what it computes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import (
    AUTOREGRESSIVE,
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

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import bundled_pairs
from specbench_kit.models.executors.base import executors, make_executor
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMAS: dict[str, dict[str, object]] = {
    "grouped queries, untied head": {},
    "one key-value head, tied head": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "as many key-value heads as heads": {"num_key_value_heads": 4},
    "heads of 6": {"head_dim": 6},
    "heads wider than the model": {"head_dim": 64},
    "one layer, eps of 0.1": {"num_hidden_layers": 1, "rms_norm_eps": 0.1},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
}


def compare(model: PreTrainedModel, vocabulary: int) -> None:
    """A prefill, then a ragged batch with a tree, then the next one after a commit, through both executors."""
    runners = [make_runner(model, 3, 120, name) for name in ("llama-cpu", "transformers")]
    prompts = random_prompts([40, 1, 70], vocabulary)
    tree = Append(0, prompts[2][:6], [-1, 0, 0, 1, 1, -1], keep=6)
    steps = [
        [Append(slot, prompt, keep=len(prompt)) for slot, prompt in enumerate(prompts)],
        [tree, Append(1, prompts[2][:2], keep=2), Append(2, prompts[2][7:10], keep=1)],
        [Append(0, prompts[2][6:9], keep=3)],
    ]
    paths: list[list[Sequence[int]]] = [
        [range(40), range(1), range(70)],
        [[0, 1, 4], range(2), range(0)],
        [range(3)],
    ]
    for runner in runners:
        assert [runner.acquire() for _ in range(3)] == [0, 1, 2]
    for rows, paths_of_step in zip(steps, paths, strict=True):
        fast, plain = (runner.forward(rows) for runner in runners)
        for index in range(len(rows)):
            torch.testing.assert_close(fast[index], plain[index], atol=1e-4, rtol=1e-4)
        assert fast.argmax() == plain.argmax()
        for runner in runners:
            for row, path in zip(rows, paths_of_step, strict=True):
                runner.commit(row.slot, path)
    text = [*prompts[0], *(prompts[2][node] for node in (0, 1, 4)), *prompts[2][6:9]]
    torch.testing.assert_close(
        fast[0], plain_logits(model, text)[-3:, : fast[0].shape[1]], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", LLAMAS)
def test_llama_cpu_equals_transformers(name: str) -> None:
    compare(tiny_llama(0, **LLAMAS[name]), 64)


def test_llama_cpu_equals_transformers_on_mistral_without_window() -> None:
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=None, head_dim=12, max_position_embeddings=128,
    )  # fmt: skip
    compare(fill(transformers.MistralForCausalLM(config), 0), 64)


def test_llama_cpu_equals_transformers_on_the_bundled_pair() -> None:
    pair = load_pair(device="cpu", dtype="float32")
    for loaded in (pair.target, pair.draft):
        compare(loaded.model, pair.target.text_config.vocab_size)


@pytest.mark.parametrize("name", ["grouped queries, untied head", "one layer, eps of 0.1"])
def test_hidden_states_are_those_of_the_model(name: str) -> None:
    """Both executors give embeddings and each layer's states of a ragged batch's kept tokens, the last normalised."""
    model = tiny_llama(0, **LLAMAS[name])
    layers = range(model.config.num_hidden_layers + 1)
    prompts = random_prompts([5, 70, 9], 64)
    with torch.inference_mode():
        plain = [
            model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
            for prompt in prompts
        ]
    for executor in ("llama-cpu", "transformers"):
        runner = make_runner(model, 3, 120, executor)
        rows = [
            Append(runner.acquire(), prompt, keep=keep)
            for prompt, keep in zip(prompts, (2, 1, 9), strict=True)
        ]
        forward = runner.forward(rows, layers)
        assert set(forward.hidden) == set(layers)
        for layer in layers:
            expected = torch.cat(
                [states[layer][0, -row.keep :] for states, row in zip(plain, rows, strict=True)]
            )
            torch.testing.assert_close(forward.hidden[layer], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(forward.logits, torch.cat([forward[row] for row in range(3)]))
        assert runner.forward([Append(0, [1])]).hidden == {}


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("prefix", "options"),
    [
        ("Llama", {"attention_bias": True}),
        ("Llama", {"mlp_bias": True}),
        ("Llama", {"hidden_act": "gelu"}),
        ("Llama", {"rope_parameters": YARN}),
        ("Mistral", {"sliding_window": 5, "num_key_value_heads": 2}),
        ("Qwen2", {"num_key_value_heads": 2}),
        ("Phi", {}),
    ],
)
def test_other_models_get_the_transformers_executor(
    prefix: str, options: dict[str, object]
) -> None:
    """Models that the fast executor would get wrong come out right."""
    config = getattr(transformers, f"{prefix}Config")(**(SIZES | options))
    model = fill(getattr(transformers, f"{prefix}ForCausalLM")(config), 0)
    runner = make_runner(model, 1, 64)
    assert isinstance(runner.executor, executors.get("transformers"))
    (prompt,) = random_prompts([40], 64)
    logits = runner.forward([Append(runner.acquire(), prompt, keep=40)])[0]
    torch.testing.assert_close(logits, plain_logits(model, prompt), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_in_the_transformers_executor(dtype: torch.dtype) -> None:
    """Every token is the best, or within rounding of it, of the model's own forward."""
    model = tiny_llama(0).to(dtype)
    runners = make_runner(model, 3, 80), make_runner(disturbed(model, 0.005), 3, 80)
    assert isinstance(runners[0].executor, executors.get("transformers"))
    assert {block.dtype for block in runners[0].executor.store.blocks} == {dtype}
    requests = make_requests(random_prompts([1, 20, 9, 33], 64), 20)
    for method in (AUTOREGRESSIVE, parse_method("fixed-k")):
        records = decode(method, runners, requests, batch_size=3)
        for request in requests:
            answer = outputs(records)[request.id]
            assert len(answer) == 20
            model_logits = plain_logits(model, [*request.prompt_ids, *answer])[
                len(request.prompt_ids) - 1 : -1
            ]
            assert (model_logits.max(-1).values - model_logits[range(20), answer]).max() < 0.25


@pytest.mark.parametrize(
    ("prefix", "options"),
    [
        ("Bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
        ("Mpt", {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4}),
        ("Mamba", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}),
        (
            "GPTNeo",
            {
                "vocab_size": 64,
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["local"], 2]],
            },
        ),
    ],
)
def test_models_that_cannot_be_run_are_one_line(prefix: str, options: dict[str, object]) -> None:
    """They keep a state, or mask for themselves: their output would be wrong without an error."""
    config = getattr(transformers, f"{prefix}Config")(**options)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with pytest.raises(
        SkitError, match=rf"^models of type '{config.model_type}' cannot be run: .+$"
    ):
        make_executor(model, 1, 10, 64)


def test_unknown_executor_is_one_line() -> None:
    with pytest.raises(
        SkitError, match=r"^unknown executor 'llama-gpu' .*'llama-cpu'.*; skit list executors shows"
    ):
        make_executor(tiny_llama(0), 1, 10, 64, "llama-gpu")


def test_the_bundled_pair_is_found_by_folder() -> None:
    pair = bundled_pairs()[0]
    assert all(Path(folder, "config.json").is_file() for folder in (pair.target, pair.draft))
