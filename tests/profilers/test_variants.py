"""Drafters and clones that are derived from a target's shapes."""

import json
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from msgspec import structs
from tomli_w import dumps

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.loading import load, read
from specbench_kit.profilers.roofline import Roofline, judge, roofline_of
from specbench_kit.profilers.subject import find_draft_subject, find_subject
from specbench_kit.profilers.variants import (
    VARIANTS,
    describe_architecture,
    find_architecture,
)

CARDS = bundled_architectures()
# Inner size, heads, KV heads and their width, as in configs/*-eagle3.json of github.com/sgl-project/SpecForge at
# a6b6b023.
EAGLE3 = {
    "llama3.1-8b": (14336, 32, 8, 128),
    "llama3.3-70b": (28672, 64, 8, 128),
    "qwen3-8b": (12288, 32, 8, 128),
    "qwen3-32b": (25600, 64, 8, 128),
    "qwen3-30b-a3b": (12288, 32, 4, 128),
    "qwen3-235b-a22b": (24576, 64, 4, 128),
    "gpt-oss-20b": (17280, 64, 8, 64),
    "gpt-oss-120b": (17280, 64, 8, 64),
}


@pytest.mark.parametrize("name", EAGLE3)
def test_an_eagle3_head_has_the_shapes_of_published_ones(name: str) -> None:
    head = find_architecture(f"eagle3:{name}")
    assert head is not None
    shapes = head.intermediate_size, head.heads, head.kv_heads, head.head_dim
    assert shapes == EAGLE3[name]
    assert (head.layers, head.vocabulary, head.hidden_size) == (1, 32000, CARDS[name].hidden_size)


def test_the_weights_of_an_eagle3_head_by_hand() -> None:
    """Of Llama-3.1-8B: projections of 3 h and 2 h, output of h, a gated layer, and 32,000 words; no embeddings."""
    head = find_architecture("eagle3:llama3.1-8b")
    assert head is not None
    h = 4096
    attention = 2 * h * (4096 + 2 * 1024) + 4096 * h
    assert head.layer_parameters == 3 * h * h + attention + 3 * h * 14336
    assert head.parameters == head.layer_parameters + 32000 * h
    assert head.kv_numbers == 2 * 8 * 128


def test_a_target_with_latent_attention_has_a_head_without() -> None:
    head = find_architecture("eagle3:deepseek-v3")
    assert head is not None
    assert (head.heads, head.kv_heads, head.head_dim, head.latent_rank) == (56, 8, 128, 0)
    assert head.weight_bits is None


def test_an_mtp_layer_is_one_of_the_targets_and_the_tables_are_the_targets() -> None:
    """The file of DeepSeek-V3's weights has 11.5 B of its own in the module for multi-token prediction."""
    target, layer = CARDS["deepseek-v3"], find_architecture("mtp:deepseek-v3")
    assert layer is not None
    assert layer.parameters / 1e9 == pytest.approx(11.5, rel=0.03)
    assert layer.kv_numbers == target.kv_numbers // 61
    assert layer.weight_bits == target.weight_bits
    # The output layer is read by every forward all the same.
    device = find_device("h200")
    read_bytes = Roofline(device, layer, "bfloat16").per_forward_s * device.bandwidth_bytes_per_s
    assert read_bytes == pytest.approx(layer.layer_parameters + 2 * layer.head_parameters)
    hybrid = find_architecture("mtp:qwen3-next-80b-a3b")
    assert hybrid is not None
    assert (hybrid.state_numbers, hybrid.kv_numbers) == (0, 2 * 2 * 256)


def test_an_mtp_layer_of_a_target_with_sparse_attention_has_an_indexer() -> None:
    layer = find_architecture("mtp:glm-5.2")
    assert layer is not None
    assert (layer.sparse_layers, layer.index_layers) == (1, 1)
    assert (layer.kv_numbers, layer.windowed_kv_numbers) == (128, 512 + 64)


def test_a_block_drafter_has_five_layers_and_one_forward_for_a_block() -> None:
    """The drafter of DFlash for Qwen3-8B: five of its layers, five of its hidden states, blocks of 16."""
    drafter = find_architecture("block:qwen3-8b")
    assert drafter is not None
    layers = (CARDS["qwen3-8b"].layer_parameters // 36) * 5
    assert drafter.parameters == layers + 5 * 4096 * 4096
    assert (drafter.layers, drafter.tokens_per_forward) == (5, 16)
    assert find_architecture("block:gpt-oss-120b").intermediate_size == 3 * 2880  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prefix", "bits", "low"),
    [("4bit", 4.125, None), ("fp8", 8, "float8"), ("mxfp4", 4.25, None), ("nvfp4", 4.5, "float4")],
)
def test_a_clone_in_fewer_bits_has_the_targets_shapes(
    prefix: str, bits: float, low: str | None
) -> None:
    target, clone = CARDS["gpt-oss-20b"], find_architecture(f"{prefix}:gpt-oss-20b")
    assert clone == structs.replace(target, weight_bits=bits, expert_bits=None, computed_in=low)


def test_an_fp8_model_is_twice_as_fast_where_operations_decide_and_reads_half() -> None:
    h100 = find_device("h100")
    plain, low = (
        Roofline(h100, shapes, "bfloat16")
        for shapes in (CARDS["llama3.3-70b"], find_architecture("fp8:llama3.3-70b"))
        if shapes is not None
    )
    assert plain.matrices_s(4096) / low.matrices_s(4096) == pytest.approx(2, rel=0.001)
    assert plain.matrices_s(1) / low.matrices_s(1) == pytest.approx(2, rel=0.001)
    a100 = Roofline(find_device("a100"), low.architecture, "bfloat16")
    assert a100.matrices_s(4096) == Roofline(
        find_device("a100"), plain.architecture, "bfloat16"
    ).matrices_s(4096)  # which has no units for float8


def test_descriptions_say_weights_forwards_and_kv() -> None:
    shown = {name: find_architecture(name) for name in ("eagle3:llama3.1-8b", "block:qwen3-8b")}
    texts = [describe_architecture(shapes) for shapes in shown.values() if shapes]
    assert texts == [
        "425 M weights beside the target's, 1 layer, a forward per drafted token, 4.1 kB of KV per token in 16 bits",
        "1.05 B weights beside the target's, 5 layers, one forward per round of 16 tokens, 20.5 kB of KV per token in "
        "16 bits",
    ]


def test_architectures_are_listed_with_what_is_derived_from_them() -> None:
    listed = json.loads(skit_here("list", "architectures", "--json").stdout)
    names = [entry["name"] for entry in listed]
    assert names == [*CARDS, *(f"{prefix}:ARCHITECTURE" for prefix in VARIANTS)]
    entries = {entry["name"]: entry for entry in listed}
    assert "5.13 B of them active, 4.348 bits each" in entries["gpt-oss-120b"]["summary"]
    (derived,) = json.loads(
        skit_here("list", "architectures", "eagle3:gpt-oss-120b", "--json").stdout
    )
    assert derived["parameters"] == find_architecture("eagle3:gpt-oss-120b").parameters  # type: ignore[union-attr]
    assert "no 'eagle3:gpt-9' among the architectures" in error_line(
        skit_here("list", "architectures", "eagle3:gpt-9")
    )


def test_a_name_is_derived_from_any_target(tmp_path: Path) -> None:
    """From a bundled card, from one of one's own, and from another derived one."""
    own = tmp_path / "mine.toml"
    own.write_text(dumps(CARDS["llama2-7b"].describe() | {"layers": 2}))
    subject = find_subject(f"EAGLE3:{own}", "draft")
    assert (subject.name, subject.is_card) == ("eagle3:mine", False)
    assert subject.architecture == VARIANTS["eagle3"].of(CARDS["llama2-7b"])
    assert find_subject("eagle3:fp8:Llama3.1-8B", "draft").is_card
    target = find_subject("gpt-oss-20b", "target")
    assert find_draft_subject("mtp", target) == find_subject("mtp:gpt-oss-20b", "draft")
    with pytest.raises(SkitError, match=r"unknown architecture 'gpt-9'.* each also behind eagle:"):
        find_subject("eagle3:gpt-9", "draft")


def test_a_drafter_has_no_random_weights_and_a_clone_is_not_measured_in_16_bits() -> None:
    for name, kind in (("eagle3:llama3.1-8b", "draft head"), ("fp8:qwen3-0.6b", "in 8 bits")):
        shapes = find_architecture(name)
        assert shapes is not None
        with pytest.raises(SkitError, match=f"no .*{kind} is made with random weights"):
            shapes.config()


def test_a_profile_is_named_by_an_architecture_and_a_card() -> None:
    silicon = load("qwen3-32b@h100")
    assert (silicon.source, silicon.device, silicon.model) == ("silicon", "h100", "qwen3-32b")
    head = load("eagle3:llama3.3-70b@h100")
    assert (head.role, head.source, head.form) == ("drafter", "roofline", "rounded")
    limit = roofline_of(head)
    assert isinstance(limit, Roofline)
    assert limit.architecture == find_architecture("eagle3:llama3.3-70b")
    several = load("gpt-oss-120b@4xh100")
    assert several.tensor_parallel == 4
    assert several.latency().seconds([(1, 512)]) < load("gpt-oss-120b@h100").latency().seconds(
        [(1, 512)]
    )
    with pytest.raises(SkitError, match="unknown GPU 'h1000'"):
        load("qwen3-32b@h1000")
    with pytest.raises(SkitError, match=r"unknown profile 'qwen3-32b'.*qwen3-32b@h100"):
        load("qwen3-32b")


def test_a_derived_profile_says_what_the_law_was_not_fitted_to() -> None:
    unusual = "; the analytic model was not fitted to latent attention and quantised weights"
    assert load("deepseek-v3@8xh200").reference.endswith(unusual)
    assert load("qwen3-next-80b-a3b@8xh200").reference.endswith("fitted to linear attention")
    assert load("qwen3-4b@h200").reference.endswith("not measured")


def test_a_deployment_of_ones_own_names_such_profiles(tmp_path: Path) -> None:
    path = tmp_path / "head.toml"
    path.write_text(
        'name = "head"\ndescription = "A head beside its target."\nsource = "derived"\n'
        '[drafter]\ndevice = "H100"\nplacement = "server"\nprofile = "eagle3:gpt-oss-120b@h100"\n'
        '[verifier]\ndevice = "H100"\nprofile = "gpt-oss-120b@h100"\n'
    )
    deployment = find(str(path)).build()
    assert deployment.drafter.latency == load("eagle3:gpt-oss-120b@h100").latency()
    assert deployment.verifier.power_w == 700
    done = skit_here(
        "bench", "--replay", "qwen2.5-coder", "--deployment", path, "--method", "fixed-k",
        "--limit", "2", "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_pair_is_derived_for_a_card_that_is_not_here(tmp_path: Path) -> None:
    done = skit_here(
        "profile-drafter", "--gpu", "h200", "--target", "gpt-oss-120b", "--draft", "block",
        "--out", tmp_path, "--save-to", tmp_path / "pair",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    profiles: list[Profile] = [read(path) for path in (tmp_path / "pair").glob("*.toml")]
    models = {profile.role: profile.model for profile in profiles}
    assert models == {"drafter": "block:gpt-oss-120b", "verifier": "gpt-oss-120b"}
    for profile in profiles:
        assert profile.latency() == load(f"{profile.model}@h200").latency()


def test_a_mixture_is_not_slow_because_its_tokens_need_different_experts() -> None:
    """The least time has all tokens of a batch at the same experts, which nobody would call fast."""
    verdict = judge(load("gpt-oss-120b@h100"))
    assert (verdict.kind, verdict.slow) == ("possible", {})
    assert verdict.regimes["memory-bound"] > 5


@pytest.mark.parametrize(("target", "shown"), [("gpt-oss-20b", True), ("qwen3-4b", False)])
def test_a_report_has_the_terms_of_windows_where_a_model_has_some(
    target: str, shown: bool, tmp_path: Path
) -> None:
    done = skit_here(
        "profile-verifier", "--gpu", "h200", "--target", target, "--from", "data-sheet",
        "--out", tmp_path, "--save-to", tmp_path / "profile.toml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (report,) = tmp_path.glob("*/report.md")
    rows = [row for row in report.read_text().splitlines() if row.startswith("| `windowed kv`")]
    assert bool(rows) is shown
