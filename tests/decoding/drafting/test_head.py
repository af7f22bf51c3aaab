"""Feature heads: read in the format of speculators, drafting as they were trained, refused where they do not fit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from environments import DEPLOYMENT
from safetensors.torch import load_file, save_file
from tiny_heads import heads_beside, put_beside, untrained
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from transformers import LlamaConfig, PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.deployments.assembly import hidden_states
from specbench_kit.deployments.base import Endpoint
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.config import default_layers
from specbench_kit.models.heads.files import load_head, save_head
from specbench_kit.models.runner import Append, Runner
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import HiddenStates
from specbench_kit.studies.training.head_training import unroll

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, **SIZES, num_hidden_layers=4)


def speculators_folder(folder: Path, *, embedding: bool = True, **changes: Any) -> Path:
    """Write a folder as the library documents it: offsets from draft to target tokens, a mask of those mapped."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.3).bfloat16()

    mapped = torch.zeros(64, dtype=torch.bool)
    mapped[8:40] = True
    weights = {
        "fc.weight": weight(32, 96),
        "layers.0.self_attn.q_proj.weight": weight(32, 64),
        "layers.0.self_attn.k_proj.weight": weight(16, 64),
        "layers.0.self_attn.v_proj.weight": weight(16, 64),
        "layers.0.self_attn.o_proj.weight": weight(32, 32),
        "layers.0.mlp.gate_proj.weight": weight(48, 32),
        "layers.0.mlp.up_proj.weight": weight(48, 32),
        "layers.0.mlp.down_proj.weight": weight(32, 48),
        **{
            f"layers.0.{name}.weight": 1 + weight(32)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        },
        "norm.weight": 1 + weight(32),
        "lm_head.weight": weight(32, 32),
        "d2t": torch.full((32,), 8),
        "t2d": mapped,
    } | ({"embed_tokens.weight": weight(64, 32)} if embedding else {})
    layer = LlamaConfig(
        **SIZES | {"num_key_value_heads": 1},
        vocab_size=64,
        num_hidden_layers=1,
        max_position_embeddings=128,
    )
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy | changes.pop("proposal", {})],
            "verifier": {
                "architectures": ["LlamaForCausalLM"],
                "name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
            },
        },
        "draft_vocab_size": 32,
        "norm_before_residual": False,
        "transformer_layer_config": layer.to_diff_dict() | {"model_type": "llama"},
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(weights, folder / "model.safetensors")
    return folder


def test_a_head_of_speculators_drafts_and_loses_nothing(
    target: PreTrainedModel, tmp_path: Path
) -> None:
    head = load_head(speculators_folder(tmp_path / "head"), target)
    assert head.config.layers == default_layers(4) == (2, 2, 1)
    assert head.tokens.tolist() == list(range(8, 40))
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_beside(runners[0], head)
    requests = make_requests(random_prompts([5, 1, 30], 64), 20)
    plain = decode(AUTOREGRESSIVE, runners, requests)
    records = decode(parse_method("eagle:k=3"), runners, requests, batch_size=2)
    assert outputs(records) == outputs(plain)
    assert {step.drafted for record in records.values() for step in record.rounds[1:-2]} == {3}
    assert {record.rounds[0].drafted for record in records.values()} == {0}


def test_a_head_comes_back_as_it_was_saved(target: PreTrainedModel, tmp_path: Path) -> None:
    head = load_head(
        speculators_folder(tmp_path / "one", embedding=False, norm_before_residual=True), target
    )
    torch.testing.assert_close(head.embed_tokens.weight, target.get_input_embeddings().weight)
    save_head(head, tmp_path / "two")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load_head(tmp_path / "two", target).config.as_json() == head.config.as_json()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculators_model_type": "medusa"}, "type 'medusa'"),
        ({"proposal": {"accept_tolerance": 0.5}}, "lossy acceptance"),
        ({"proposal": {"verifier_accept_k": 3}}, "lossy acceptance"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, "layers (2, 16, 29)"),
        ({"target_hidden_size": 4096}, "width 4096"),
        ({"draft_vocab_size": 31}, "has another shape"),
        ({"norm_before_fc": True}, "a norm before its projection"),
        ({"transformer_layer_config": None}, "damaged"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(
    changes: dict[str, Any], words: str, target: PreTrainedModel, tmp_path: Path
) -> None:
    with pytest.raises(SkitError) as refused:
        load_head(speculators_folder(tmp_path / "head", **changes), target)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("norm_first", [False, True])
def test_both_executors_draft_what_training_unrolls(
    norm_first: bool, target: PreTrainedModel, tmp_path: Path
) -> None:
    """A prompt's rows on the target's states, then a chain on the head's own; side branches disturb nothing."""
    head = load_head(speculators_folder(tmp_path / "head", norm_before_residual=norm_first), target)
    tokens, target_states = (
        torch.randint(64, (1, 16), generator=torch.Generator().manual_seed(1)),
        torch.randn(12, 96),
    )
    with torch.inference_mode():
        fused = torch.cat((head.fc(target_states), torch.zeros(3, 32)))[None]
        steps = [
            head.lm_head(head.norm(states))[0]
            for states in unroll(head, tokens, fused, 4, first=11)
        ]
    expected = torch.stack([states[0] for states in steps])
    for name in ("head", "native-head"):
        runner = Runner(make_executor(head, 2, 64, None, name))
        assert runner.acquire() == 0
        runner.executor.add_states(0, target_states)  # type: ignore[attr-defined]
        text = tokens[0, 1:].tolist()
        forwards = [runner.forward([Append(0, text[:12])])]
        nodes = [11]
        for token in text[12:]:
            sibling = (token + 1) % 64
            forwards.append(runner.forward([Append(0, [sibling, token], [nodes[-1], nodes[-1]])]))
            nodes.append(runner.provisional(0) - 1)
        drafted = torch.cat([forward[0][-1:, 8:40] for forward in forwards])
        torch.testing.assert_close(drafted, expected, atol=2e-4, rtol=2e-4)
        best: Sequence[int] = [forward.argmax()[0][-1] for forward in forwards]
        assert best == (expected.argmax(-1) + 8).tolist()


LINK = Link(rtt_s=0.1, down_bytes_per_s=1000, state_bytes=15)
FAR = replace(
    DEPLOYMENT, drafter=Endpoint("edge", ContextModel(0, gamma_s=1e-3, delta_s=1e-2)), link=LINK
)


@pytest.fixture(scope="module")
def easy() -> tuple[Runner, Runner]:
    """Make a vocabulary so small that an untrained head, which reads the layers 0 and 1, is right now and then."""
    target = tiny_llama(0, vocab_size=6)
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_beside(runners[0], untrained(runners[0], seed=4))
    return runners


def test_the_states_of_what_is_kept_cross_the_link_with_the_verdict(
    easy: tuple[Runner, Runner],
) -> None:
    """Two layers of 15 bytes and an id of 4: 34 ms per kept token at 1000 bytes/s, 30 ms per token of the prompt.

    Accepted tokens are forwarded again, now that their states are known: 1 ms each, as are the prompt's.
    """
    (record,) = decode(
        parse_method("eagle:k=3"), easy, make_requests([[1, 2, 3, 4, 5]], 40), deployment=FAR
    ).values()
    first, second, *later = record.rounds
    assert first.link_s == pytest.approx(0.05 + 0.05 + 0.004 + 5 * 0.030)
    assert (first.draft_s, first.prefill_s) == (0.0, 0.0)
    assert second.prefill_s == pytest.approx(0.010 + 5 * 0.001)
    assert sum(step.accepted for step in later) > 3
    for before, step in pairwise([second, *later[:-1]]):
        assert step.link_s == pytest.approx(0.1 + (1 + step.accepted) * 0.034)
        assert step.draft_s == pytest.approx(3 * 0.010 + (3 + before.accepted) * 0.001)


def test_a_link_that_names_no_size_takes_the_targets_own(easy: tuple[Runner, Runner]) -> None:
    """32 numbers of 4 bytes in each of two layers."""
    method, far = parse_method("eagle"), replace(FAR, link=replace(LINK, state_bytes=0.0))
    heads = heads_beside(method, easy[0])
    assert hidden_states(method, far, easy[0], heads) == HiddenStates((0, 1), 256)
    beside = replace(far, placement="server")
    assert hidden_states(method, beside, easy[0], heads) == HiddenStates((0, 1), 0)
    assert hidden_states(parse_method("fixed-k"), far, easy[0], {}) is None


@pytest.mark.parametrize(
    "spec", ["fixed-k:drafter=head", "specedge:drafter=head,budget=6,beams=3,branch=3"]
)
def test_a_head_beyond_a_link_loses_nothing(spec: str, easy: tuple[Runner, Runner]) -> None:
    requests = make_requests(random_prompts([5, 1, 30], 6), 20)
    records = decode(parse_method(spec), easy, requests, batch_size=2, deployment=FAR)
    assert outputs(records) == outputs(decode(AUTOREGRESSIVE, easy, requests))
    assert sum(step.accepted for record in records.values() for step in record.rounds) > 5
