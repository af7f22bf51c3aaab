"""Device and architecture cards."""

from pathlib import Path

import pytest
from documents import ROOT
from msgspec import structs
from tiny_models import tiny_llama
from tomli_w import dumps

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.architectures import (
    architecture_of_config,
    bundled_architectures,
    read_architecture,
)
from specbench_kit.profilers.devices import bundled_devices, device_reported_as, find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, bundled_software
from specbench_kit.profilers.subject import find_subject

BILLIONS = {
    "qwen3-32b": 32.76,
    "qwen3-14b": 14.77,
    "qwen3-8b": 8.19,
    "qwen3-4b": 4.02,
    "qwen3-1.7b": 1.72,
    "qwen3-0.6b": 0.596,
    "llama3.1-70b": 70.55,
    "llama3.1-8b": 8.03,
    "llama3.2-1b": 1.236,
    "llama3.2-3b": 3.213,
    "llama2-7b": 6.738,
    "vicuna-13b": 13.02,
    "vicuna-33b": 32.53,
    "vicuna-68m": 0.0680,
    "vicuna-160m": 0.1624,
    "llama3.3-70b": 70.55,
    "qwen3-30b-a3b": 30.53,
}
"""As the models' own pages give them."""


@pytest.mark.parametrize("name", BILLIONS)
def test_shapes_give_the_published_number_of_parameters(name: str) -> None:
    assert bundled_architectures()[name].parameters / 1e9 == pytest.approx(BILLIONS[name], rel=2e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_shapes_of_a_real_model_count_its_matrices(tied: bool) -> None:
    model = tiny_llama(tie_word_embeddings=tied)
    shapes = architecture_of_config(model.config)
    assert shapes is not None
    assert shapes.parameters == sum(
        weight.numel() for weight in model.parameters() if weight.ndim == 2
    )
    assert shapes.kv_numbers == 2 * 2 * 2 * 8


def test_a_card_builds_a_model_of_its_size() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    card = bundled_architectures()["qwen3-0.6b"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(card.config())
    assert model.num_parameters() == pytest.approx(card.parameters, rel=1e-3)


def test_every_required_device_has_a_card() -> None:
    required = "a100-40 a100-80 h100 h200 b200 rtx-pro-6000 l40 l40s rtx4090 rtx3090 rtx4070ti-super rtx2080ti cpu"
    required += " jetson-agx-orin-64 snapdragon-8-gen-3 snapdragon-8-elite a40 l4 l20 rtx5090 rtx4080 h20 gh200 gb200"
    required += " b300 mi300x mi325x mi355x rtx3060 rtx4070 jetson-orin-nano-8 m2-ultra m4-max"
    required += " raspberry-pi-5 raspberry-pi-4b"
    assert set(required.split()) <= set(bundled_devices())
    assert find_device("a100") is find_device("A100-80")
    a100, l40s = device_reported_as("NVIDIA A100-SXM4-40GB"), device_reported_as("NVIDIA L40S")
    assert a100 is not None
    assert l40s is not None
    assert (a100.name, l40s.name, device_reported_as("NVIDIA T4")) == ("a100-40", "l40s", None)


def test_edge_devices_have_the_rates_that_follow_from_their_parts() -> None:
    """Transfers times bus width, and clocks times units: what the data sheets state apart, multiplied out here."""
    neon = 2 * 4  # a 128-bit unit multiplies and adds four float32 numbers in a cycle
    jetson, phone, elite = map(
        find_device, ("jetson-agx-orin-64", "snapdragon-8-gen-3", "snapdragon-8-elite")
    )
    assert jetson.bandwidth_bytes_per_s == pytest.approx(6400e6 * 256 / 8)
    assert jetson.peak("float32") == pytest.approx(2048 * 2 * 1.3e9, rel=0.01)
    assert jetson.peak("bfloat16") == pytest.approx(170e12 / 2 / 2)  # neither sparse nor of 8 bits
    assert phone.bandwidth_bytes_per_s == pytest.approx(2 * 4800e6 * 64 / 8)
    assert phone.peak("float32") == pytest.approx(neon * (4 * 3.3e9 + 2 * (3 * 3.2e9 + 2 * 3.0e9)))
    assert elite.bandwidth_bytes_per_s == pytest.approx(2 * 5300e6 * 64 / 8)
    assert elite.peak("float32") == pytest.approx(neon * 4 * (2 * 4.32e9 + 6 * 3.53e9), rel=0.001)
    for card in (phone, elite):
        assert card.peak("float16") == 2 * card.peak("float32")
        assert card.default_dtype == "float16"


# CUDA cores, tensor cores, GHz, bits of the memory's bus, GT/s: what the makers' sheets state apart. A CUDA core adds
# a product per cycle, a tensor core of these cards 64 products of half precision into float32; A40 and L4 are server
# cards, whose tensor cores make twice as many.
PARTS = {
    "rtx5090": (21760, 680, 2.407, 512, 28.0, 1),
    "rtx4090": (16384, 512, 2.52, 384, 21.0, 1),
    "rtx4080": (9728, 304, 2.505, 256, 22.4, 1),
    "rtx4070ti-super": (8448, 264, 2.61, 256, 21.0, 1),
    "rtx4070": (5888, 184, 2.475, 192, 21.0, 1),
    "rtx3090": (10496, 328, 1.695, 384, 19.5, 1),
    "rtx3060": (3584, 112, 1.777, 192, 15.0, 1),
    "a40": (10752, 336, 1.74, 384, 14.5, 2),
    "l4": (7424, 232, 2.04, 192, 12.5, 2),
    "l40s": (18176, 568, 2.52, 384, 18.0, 2),
}


@pytest.mark.parametrize("name", PARTS)
def test_graphics_cards_have_the_rates_that_follow_from_their_parts(name: str) -> None:
    cores, tensor_cores, ghz, bits, transfers, faster = PARTS[name]
    card = find_device(name)
    assert card.bandwidth_bytes_per_s == pytest.approx(bits / 8 * transfers * 1e9, rel=0.01)
    assert card.peak("float32") == pytest.approx(2 * cores * ghz * 1e9, rel=0.01)
    half = 2 * 64 * faster * tensor_cores * ghz * 1e9
    assert card.peak("bfloat16") == pytest.approx(half, rel=0.025)


def test_lower_precision_multiplies_the_rate_of_half_precision() -> None:
    """Twice in float8; in float4 four times, and up to eight where a card's tensor cores lean towards it."""
    factors = {
        (name, low): card.peak_flops[low] / card.peak("bfloat16")
        for name, card in bundled_devices().items()
        for low in ("float8", "float4")
        if low in card.peak_flops
    }
    assert len(factors) > 15
    for (name, low), factor in factors.items():
        if low == "float8":
            assert factor == pytest.approx(2, rel=0.02), name
        else:
            assert factor == pytest.approx({"b300": 6.2, "rtx5090": 8}.get(name, 4), rel=0.02), name


def test_parts_of_servers_and_of_macs_multiply_out() -> None:
    b300, gb200, nano = map(find_device, ("b300", "gb200", "jetson-orin-nano"))
    assert 8 * b300.peak("bfloat16") == pytest.approx(36e15 / 2)  # of eight cards, with sparsity
    assert 72 * gb200.peak("bfloat16") == pytest.approx(360e15 / 2)  # of a rack of 72
    assert nano.peak("float32") == pytest.approx(1024 * 2 * 1.02e9, rel=0.01)
    assert nano.peak("bfloat16") == pytest.approx(67e12 / 2 / 2)
    assert nano.bandwidth_bytes_per_s == pytest.approx(6400e6 * 128 / 8)
    for name, units, ghz in (("mi300x", 304, 2.1), ("mi325x", 304, 2.1), ("mi355x", 256, 2.4)):
        # An AMD compute unit makes 2,048 operations of half precision in a cycle, twice as many from CDNA 4 on.
        per_cycle = 4096 if name == "mi355x" else 2048
        assert find_device(name).peak("bfloat16") == pytest.approx(
            units * per_cycle * ghz * 1e9, rel=0.001
        )
    for name, cores, ghz in (("m2-ultra", 76, 1.398), ("m4-max", 40, 1.578)):
        assert find_device(name).peak("float32") == pytest.approx(
            2 * 128 * cores * ghz * 1e9, rel=0.01
        )


def test_a_phone_meets_the_round_that_was_measured_on_one_only_within_what_is_unknown_of_it() -> (
    None
):
    """Four levels of Qwen3-0.6B in 4 bits, of one node or of up to 32, and a link of 200 ms: 285 to 305 ms measured.

    The page on links states these numbers, which nothing was fitted to.
    """
    shapes = structs.replace(bundled_architectures()["qwen3-0.6b"], weight_bits=4.5)
    roofline = Roofline(find_device("snapdragon-8-elite"), shapes, "float16")
    model = roofline.estimate(bundled_software()[KERNELS])
    narrow_s = 0.2 + 4 * model.seconds([(1, 300)])
    wide_s = 0.2 + model.seconds([(1, 300)]) + 3 * model.seconds([(32, 300)])
    text = (ROOT / "docs" / "recipes" / "link.md").read_text(encoding="utf-8")
    ratios = f"{narrow_s / 0.295:.2f} to {wide_s / 0.295:.2f} times the 295 ms"
    assert f"take {1e3 * narrow_s:.0f} to {1e3 * wide_s:.0f} ms together, {ratios}" in text


def test_a_cpu_has_the_peaks_of_its_cores() -> None:
    card = find_device("cpu")
    assert card.with_cores(4).peak("float32") == 4 * card.peak("float32")
    assert find_device("h100").with_cores(4) == find_device("h100")


def test_an_unknown_gpu_lists_the_known() -> None:
    named = r"unknown GPU 'rtx4095' .*'rtx4090'.*list devices shows all \d+, or give a .toml"
    with pytest.raises(SkitError, match=named):
        find_device("rtx4095")


def test_a_dtype_without_units_is_refused() -> None:
    with pytest.raises(
        SkitError, match="rtx2080ti has no units for bfloat16; use float32 or float16"
    ):
        find_device("rtx2080ti").peak("bfloat16")


def test_cards_of_ones_own(tmp_path: Path) -> None:
    gpu, model = tmp_path / "mine.toml", tmp_path / "small.toml"
    gpu.write_text(
        'title = "Mine"\nmemory_bytes = 8e9\nbandwidth_bytes_per_s = 1e12\npeak_flops = { float16 = 1e14 }\n'
    )
    model.write_text(dumps(bundled_architectures()["llama2-7b"].describe() | {"layers": 2}))
    assert find_device(str(gpu)).default_dtype == "float16"
    assert find_subject(str(model), "target").name == "small"
    assert not find_subject(str(model), "target").is_card
    assert find_subject("Qwen3-32B", "target").is_card


BAD = {
    'family = "llama"': ": hidden_size is missing",
    "family = ": "is not valid TOML",
    'family = "gpt2"': 'family must be .* or "llama" or',
    "layers = 0": "layers must be a whole number >= 1, not 0",
    "colour = 1": "unknown keys: colour",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_card_is_one_line(text: str, tmp_path: Path) -> None:
    card = bundled_architectures()["llama2-7b"].describe()
    path = tmp_path / "bad.toml"
    key, _, value = text.partition(" = ")
    is_complete_text = text == 'family = "llama"' or not value
    lines = [line for line in dumps(card).splitlines() if not line.startswith(f"{key} =")]
    path.write_text(text if is_complete_text else "\n".join([*lines, text]))
    with pytest.raises(SkitError, match=BAD[text]):
        read_architecture(path)


def test_an_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(
        SkitError, match=r"unknown architecture 'qwen3-31b' \(did you mean 'qwen3-32b'"
    ):
        find_subject("qwen3-31b", "target")
