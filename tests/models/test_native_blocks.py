"""The native executor for GGUF files: products of the file's own blocks with activations in 8 bits, nothing else."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from gguf_files import Encode, Encoded, quantised, rewrite
from native_models import builds, in_a_tree, in_pieces, rounded
from nightly import nightly_except
from numpy.typing import NDArray
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    fill,
    make_requests,
    outputs,
    random_prompts,
    tiny_llama,
)
from torch import Tensor
from torch.nn import Linear, Parameter
from transformers import AutoTokenizer, PreTrainedModel

from benchmarks import gguf_file
from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.executors import library
from specbench_kit.models.executors.base import Forward, executors, held_bytes, make_executor
from specbench_kit.models.executors.native_rounded import NativeBlocksExecutor
from specbench_kit.models.gguf import open_gguf
from specbench_kit.models.pair import LoadedModel, load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.models.weights.blocks import BLOCKS, blocks_of

needs_native = pytest.mark.skipif(library.load_library() is None, reason="no C++ compiler")
pytestmark = [needs_native, pytest.mark.usefixtures("home")]
KINDS = tuple(gguf.GGMLQuantizationType(number).name for number in BLOCKS)
SUPER = 256
"""The weights that share the largest scale of a K type, and the activations that share one."""
HEADS = 4
FACTORS: dict[str, tuple[tuple[int, ...], float, float]] = {
    "Q4_0": ((0,), 0.01, 0),
    "Q4_1": ((0, 2), 0.01, -7.5),
    "Q5_0": ((0,), 0.005, 0),
    "Q5_1": ((0, 2), 0.005, -15.5),
    "Q8_0": ((0,), 6e-4, 0),
    "Q4_K": ((0, 2), 3e-4, 7.5),
    "Q5_K": ((0, 2), 1.5e-4, 15.5),
    "Q6_K": ((208,), 3e-5, 0),
}
"""By type: where a block has its factors, the least of the first, and the second's share, which centres weights."""


NORMS: dict[str, Callable[[str], str]] = {
    "norm": lambda _: "output_norm.weight",
    "input_layernorm": lambda name: f"blk.{name.split('.')[2]}.attn_norm.weight",
    "post_attention_layernorm": lambda name: f"blk.{name.split('.')[2]}.ffn_norm.weight",
}


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Blocks of random codes and scales, whose weights are about as large as those of a model."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // weights, size), np.uint8)
    factor_offsets, least, middle = FACTORS[kind]
    factors = generator.uniform(least, 2 * least, (len(blocks), 1)) * [1, middle]
    for number, offset in enumerate(factor_offsets):
        blocks[:, offset : offset + 2] = (
            factors[:, number : number + 1].astype(np.float16).view(np.uint8)
        )
    return blocks.reshape(rows, -1)


def every_matrix(kind: str) -> Encode:
    """Replace every matrix by random blocks of a type."""

    def encode(name: str, matrix: NDArray[np.float32]) -> Encoded:
        return random_blocks(kind, *matrix.shape, sum(name.encode())), gguf.GGMLQuantizationType[
            kind
        ]

    return encode


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of f32 weights whose rows are whole superblocks."""
    return write(tmp_path_factory.mktemp("wide"))


def write(folder: Path, **options: Any) -> Path:
    source = locate("bundled", "draft")
    tokenizer = AutoTokenizer.from_pretrained(source.location)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": SUPER,
        "intermediate_size": 2 * SUPER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    }
    path = folder / "wide.gguf"
    gguf_file.write(
        LoadedModel(fill(tiny_llama(**sizes | options), 0, scale=0.06), source), tokenizer, path
    )
    return path


def block_builds() -> Iterator[str]:
    """Yield the builds that multiply blocks on this processor."""
    yield from builds()
    if library.load_narrow_library() is not None:
        yield library.NARROW_BUILD


def use_build(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_library(next(library._find(name)), monkeypatch)


def use_library(build: library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeBlocksExecutor, "library", classmethod(lambda _: build))


def has_tiles() -> bool:
    narrow = library.load_narrow_library()
    return narrow is not None and narrow.products(None) == "AMX"


def require_same_bits(narrow: library.NarrowLibrary, path: Path) -> None:
    """Read a text in pieces for each of which tiles are used, or are not, and by dot products."""
    (text,) = random_prompts([300], 4096)
    found = {}
    for products in ("AMX", "AVX512-BF16"):
        assert narrow.products(products) == products
        runner = load_pair(str(path), None).all_runners(1, 310)["target"]
        assert type(runner.executor) is NativeBlocksExecutor
        found[products] = [in_pieces(runner, text, size) for size in (1, 9, 17, 40, 300)]
    alone = found["AVX512-BF16"][0]
    assert all(torch.equal(logits, alone) for pieces in found.values() for logits in pieces)


def as_in_the_file(path: Path, *, round_activations: bool) -> PreTrainedModel:
    """The transformers model with the file's weights in fp32, and activations rounded before every matrix."""
    loaded = load_pair(str(path), None, executor="transformers").target.model
    tensors = {tensor.name: tensor for tensor in open_gguf(path).tensors}
    names = {
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }

    def weights(name: str) -> tuple[Tensor, int]:
        tensor = tensors[f"{name}.weight"]
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        return values, SUPER if tensor.tensor_type.name.endswith("_K") else 32

    for name, parameter in loaded.named_parameters():
        if parameter.dim() == 1:  # the conversion rounds them
            parameter.data = torch.from_numpy(
                np.array(tensors[NORMS[name.split(".")[-2]](name)].data)
            )
    embedding, together = weights("token_embd")
    loaded.get_input_embeddings().weight = Parameter(embedding, requires_grad=False)
    for module_name, module in loaded.named_modules():
        if not isinstance(module, Linear):
            continue
        part = module_name.rsplit(".", 1)[-1]
        if part == "lm_head":
            values, together = (
                weights("output") if "output.weight" in tensors else (embedding, together)
            )
        else:
            values, together = weights(f"blk.{module_name.split('.')[2]}.{names[part]}")
        if part in (
            "q_proj",
            "k_proj",
        ):  # the two numbers that RoPE rotates together are neighbours in the file
            heads = HEADS if part == "q_proj" else loaded.config.num_key_value_heads
            values = values.unflatten(0, (heads, -1, 2)).swapaxes(1, 2).flatten(0, 2)
        module.weight = Parameter(values.contiguous(), requires_grad=False)
        if round_activations:
            module.register_forward_pre_hook(
                lambda _, read, size=together: (rounded(read[0], size),)
            )
    return loaded


@torch.inference_mode()
def logits(model: PreTrainedModel, text: list[int]) -> Tensor:
    last_logits: Tensor = model(torch.tensor([text])).logits[0]
    return last_logits


BUILDS = list(block_builds())
KEPT = [("Q4_K", build) for build in BUILDS[:-1]] + list(
    product(("Q5_0", "Q8_0", "Q4_K", "Q6_K"), BUILDS[-1:])
)
"""Every build with one type of weights, and the widest one with a type of each layout."""


@pytest.mark.parametrize(("kind", "build"), nightly_except(KEPT, product(KINDS, BUILDS)))
def test_products_are_those_of_the_files_weights_with_rounded_activations(
    kind: str, build: str, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)
    path = rewrite(wide, tmp_path / f"{kind}.gguf", every_matrix(kind))
    runner = load_pair(str(path), None).all_runners(1, 120)["target"]
    assert type(runner.executor) is NativeBlocksExecutor
    models = [as_in_the_file(path, round_activations=on) for on in (True, False)]
    shares = []
    for text in random_prompts([3] * 5, 4096):
        slot = runner.acquire()
        computed = runner.forward([Append(slot, text, keep=3)])[0]
        runner.release(slot)
        expected, exact = (logits(model, text) for model in models)
        shares.append(
            ((computed - expected).abs().median() / (computed - exact).abs().median()).item()
        )
        assert (computed - exact).abs().median() < 0.1 * exact.abs().median()
    # A sum in another order may round an activation to its neighbour, and the whole text differs: most have none.
    assert np.median(shares) < 0.01


def runner_of(path: Path, slots: int = 1) -> Runner:
    return load_pair(str(path), None).all_runners(slots, 200)["target"]


MIXED = {
    "token_embd": "Q5_0",
    "output": "Q8_0",
    "attn_v": "Q6_K",
    "ffn_down": "Q6_K",
    "attn_output": "Q5_1",
}


def like_a_published_file(name: str, matrix: NDArray[np.float32]) -> Encoded:
    """Another type for some matrices, even for those that are multiplied together."""
    kind = next((MIXED[part] for part in MIXED if part in name), "Q4_K")
    return every_matrix(kind)(name, matrix)


@pytest.fixture
def mixed(wide: Path, tmp_path: Path) -> Path:
    return rewrite(wide, tmp_path / "mixed.gguf", like_a_published_file)


@pytest.mark.parametrize("build", list(block_builds()))
def test_a_token_has_the_same_bits_however_tokens_are_put_together(
    build: str, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)
    runner = runner_of(mixed, 3)
    (text,) = random_prompts([112], 4096)
    at_once = in_pieces(runner, text, 112)
    for size in (1, 2, 5, 17, 40):
        assert torch.equal(in_pieces(runner, text, size), at_once), size
    assert torch.equal(in_a_tree(runner, text, 100), at_once[100:])
    before = torch.get_num_threads()
    try:
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            assert torch.equal(in_pieces(runner, text, 7), at_once), threads
    finally:
        torch.set_num_threads(before)


NARROW_SIZES = {"hidden_size": 192, "intermediate_size": 160}
"""Rows of six and of five blocks, of which tiles read four at once."""
TILED = [*((kind, {}) for kind in KINDS), ("Q5_1", NARROW_SIZES), ("Q8_0", NARROW_SIZES)]


@pytest.mark.parametrize(("kind", "sizes"), TILED)
@pytest.mark.skipif(not has_tiles(), reason="no processor with AMX")
def test_tiles_give_the_bits_of_dot_products(
    kind: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    narrow = library.load_narrow_library()
    assert narrow is not None
    longer = write(tmp_path, max_position_embeddings=512, **sizes)
    path = rewrite(longer, tmp_path / f"{kind}.gguf", every_matrix(kind))
    try:
        require_same_bits(narrow, path)
    finally:
        narrow.products("AMX")


def test_a_tied_output_layer_is_held_once_and_looked_up(tmp_path: Path) -> None:
    path = rewrite(
        write(tmp_path, tie_word_embeddings=True), tmp_path / "tied.gguf", every_matrix("Q6_K")
    )
    runner = runner_of(path)
    (text,) = random_prompts([30], 4096)
    forward = runner.forward([Append(runner.acquire(), text, keep=30)], layers=(0,))
    weights = as_in_the_file(path, round_activations=True)
    assert torch.equal(forward.hidden[0], weights.get_input_embeddings().weight[text])
    exact, expected = (
        logits(as_in_the_file(path, round_activations=False), text),
        logits(weights, text),
    )
    assert (forward[0] - expected).abs().median() < 0.2 * (forward[0] - exact).abs().median()


def test_every_method_gives_the_tokens_of_plain_decoding(
    mixed: Path, wide: Path, tmp_path: Path
) -> None:
    draft = rewrite(wide, tmp_path / "draft.gguf", quantised("Q8_0"))
    runners = runner_of(mixed, 3), runner_of(draft, 3)
    requests = make_requests(random_prompts([5, 30, 17, 8], 4096), 24)
    plain = outputs(decode(AUTOREGRESSIVE, runners, requests))
    assert outputs(decode(AUTOREGRESSIVE, runners, requests, batch_size=3)) == plain
    for method in ("fixed-k:k=4", "specinfer", "suffix"):
        assert outputs(decode(parse_method(method), runners, requests, batch_size=3)) == plain, (
            method
        )


def in_4_bits(path: Path) -> Runner:
    return load_pair(str(path), None, executor="native-4bit").all_runners(1, 200)["target"]


def test_codes_of_more_bits_are_rounded_to_four_with_the_least_error(tmp_path: Path) -> None:
    path = rewrite(
        write(tmp_path, tie_word_embeddings=True), tmp_path / "tied.gguf", every_matrix("Q6_K")
    )
    text = list(range(64))
    runner = in_4_bits(path)
    embedded = runner.forward([Append(runner.acquire(), text, keep=64)], layers=(0,)).hidden[0]
    weights = as_in_the_file(path, round_activations=False).get_input_embeddings().weight[text]
    blocks, own = embedded.unflatten(-1, (-1, 32)), weights.unflatten(-1, (-1, 32))
    assert all(len(block.unique()) <= 16 for block in blocks.flatten(0, 1))
    least, greatest = own.amin(-1, keepdim=True), own.amax(-1, keepdim=True)
    step = (greatest - least) / 15
    by_ends = ((own - least) / step).round() * step + least
    assert (blocks - own).square().mean() < 0.98 * (by_ends - own).square().mean()


def test_a_file_in_4_bits_stays_as_it_is(wide: Path, tmp_path: Path) -> None:
    path = rewrite(wide, tmp_path / "four.gguf", every_matrix("Q4_K"))
    (text,) = random_prompts([30], 4096)
    logits_of_files = [
        in_pieces(load_pair(str(path), None, executor=name).all_runners(1, 200)["target"], text, 30)
        for name in ("native-blocks", "native-4bit")
    ]
    assert torch.equal(*logits_of_files)


def test_a_draft_may_be_in_4_bits_while_the_target_is_exact(
    mixed: Path, wide: Path, tmp_path: Path
) -> None:
    draft = rewrite(wide, tmp_path / "draft.gguf", every_matrix("Q8_0"))
    pair = load_pair(str(mixed), str(draft), executor="auto+native-4bit")
    runners = pair.runners(2, 100)
    assert [type(runner.executor) for runner in runners] == [
        NativeBlocksExecutor,
        executors.get("native-4bit"),
    ]
    described = pair.describe(lambda _: "0")
    assert (described["target"].name, described["draft"].name) == ("mixed", "draft in 4 bits")
    requests = make_requests(random_prompts([5, 30], 4096), 16)
    plain = outputs(decode(AUTOREGRESSIVE, runners, requests))
    assert outputs(decode(parse_method("fixed-k:k=4"), runners, requests, batch_size=2)) == plain


@pytest.mark.parametrize("first", [1, 1000, 4095])
def test_a_draft_may_compute_the_logits_of_the_first_tokens_alone(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    path = rewrite(wide, tmp_path / "draft.gguf", every_matrix("Q8_0"))
    monkeypatch.setattr(executors.get("native-4bit-64k"), "first_tokens", first)
    (text,) = random_prompts([30], 4096)

    def answer(name: str) -> Forward:
        runner = load_pair(str(path), None, executor=name).all_runners(1, 200)["target"]
        return runner.forward([Append(runner.acquire(), text, keep=30)])

    full, short = answer("native-4bit"), answer("native-4bit-64k")
    assert torch.equal(short.logits[:, :first], full.logits[:, :first])
    assert short.argmax() == [full.logits[:, :first].argmax(-1).tolist()]
    assert not short.logits[:, first:].float().sub(short.logits.amax(-1, keepdim=True)).exp().any()
    assert torch.isfinite(short.logits).all()


def test_a_pair_whose_draft_computes_few_logits_is_another_pair_and_lossless(
    mixed: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = rewrite(wide, tmp_path / "draft.gguf", every_matrix("Q8_0"))
    monkeypatch.setattr(executors.get("native-4bit-32k"), "first_tokens", 1000)
    pair = load_pair(str(mixed), str(draft), executor="auto+native-4bit-32k")
    described = pair.describe(lambda _: "0")["draft"]
    assert (described.name, described.hash) == (
        "draft in 4 bits, first 1,000 tokens",
        "0-4bit-first1000",
    )
    runners, requests = pair.runners(2, 100), make_requests(random_prompts([5, 30], 4096), 16)
    plain = outputs(decode(AUTOREGRESSIVE, runners, requests))
    for method in ("threshold", "fixed-k:k=4", "specinfer"):
        assert outputs(decode(parse_method(method), runners, requests, batch_size=2)) == plain, (
            method
        )


@pytest.mark.parametrize("build", list(block_builds()))
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_noticed(
    build: str, scale: float, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)

    def encode(name: str, matrix: NDArray[np.float32]) -> Encoded:
        blocks, kind = every_matrix("Q4_K")(name, matrix)
        if name == "blk.1.ffn_down.weight":
            blocks[3, :2] = np.array([scale], np.float16).view(np.uint8)
        return blocks, kind

    runner = runner_of(rewrite(wide, tmp_path / "nan.gguf", encode))
    assert runner.forward([Append(runner.acquire(), [1, 2, 3])]).is_nan()


def test_the_size_before_loading_is_that_of_the_files_matrices(mixed: Path) -> None:
    shell = load_pair(str(mixed), None).target.shell
    tensors = open_gguf(mixed).tensors
    assert held_bytes(shell) == sum(int(tensor.n_bytes) for tensor in tensors)
    assert held_bytes(shell, "native") > 2 * held_bytes(shell)


def test_what_has_no_blocks_is_left_to_native_or_refused_in_one_line(
    wide: Path, tmp_path: Path
) -> None:
    bundled = load_pair().target.shell
    assert type(make_executor(bundled, 1, 40, None)) is executors.get("native")
    with pytest.raises(
        SkitError, match=r"^executor 'native-blocks' computes models of one GGUF file: use native"
    ):
        make_executor(bundled, 1, 40, None, "native-blocks")
    halves = load_pair(
        str(rewrite(wide, tmp_path / "half.gguf", quantised("F16"))), None
    ).target.shell
    assert type(make_executor(halves, 1, 40, None)) is executors.get("native")
    with pytest.raises(
        SkitError,
        match=r"^executor 'native-blocks' cannot multiply by the blocks of .*: use native",
    ):
        make_executor(halves, 1, 40, None, "native-blocks")


def test_where_no_instruction_multiplies_bytes_native_is_the_default(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_pair(str(mixed), None).target
    monkeypatch.setattr("specbench_kit.models.executors.native_rounded.byte_products", lambda: "")
    assert type(loaded.runner(1, 40, None).executor) is executors.get("native")
    assert type(loaded.runner(1, 40, None, "native-blocks").executor) is NativeBlocksExecutor


def test_without_the_file_itself_its_converted_weights_are_computed(mixed: Path) -> None:
    loaded = load_pair(str(mixed), None).target
    assert blocks_of(loaded.shell.lm_head.weight) is not None
    mixed.write_bytes(mixed.read_bytes()[:-4096])
    with pytest.raises(SkitError, match=r"^cannot read .* in '.*mixed\.gguf', which has changed"):
        loaded.runner(1, 40, None)
    again = load_pair(loaded.source.location, None).target
    assert type(again.runner(1, 40, None).executor) is executors.get("native")
