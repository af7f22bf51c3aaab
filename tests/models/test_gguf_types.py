"""Every type of GGUF weights is read as ggml writes it: bit by bit here, and by the logits of llama.cpp if it is there.

`recorded/ggml_rows.json` holds one row of weights per type, as ggml's own functions quantised and dequantised it.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import Encoded, rewrite
from numpy.typing import NDArray
from safetensors.torch import load_file
from tiny_models import fill, tiny_llama
from transformers import AutoTokenizer

from benchmarks import gguf_file, gguf_types, llama_library
from specbench_kit.models.catalogue import locate
from specbench_kit.models.gguf import converted_folder, open_gguf
from specbench_kit.models.pair import LoadedModel

ROWS = json.loads(Path(__file__).with_name("recorded").joinpath("ggml_rows.json").read_text())[
    "rows"
]
BLOCK = 256
"""The weights in a block of the K types: with rows of this length, every type is written as it is."""


MATRICES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    **{
        f"model.layers.{layer}.{name}.weight": f"blk.{layer}.{gguf_name}.weight"
        for layer in (0, 1)
        for name, gguf_name in (
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.down_proj", "ffn_down"),
        )
    },
}
"""Ten matrices, one for each type, by their names in the two formats."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of f32 weights whose rows are whole blocks, with the bundled tokenizer."""
    source = locate("bundled", "draft")
    tokenizer = AutoTokenizer.from_pretrained(source.location)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": BLOCK, "intermediate_size": 2 * BLOCK}
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    gguf_file.write(LoadedModel(fill(tiny_llama(**sizes), 0, scale=0.06), source), tokenizer, path)
    return path


def turned(row: NDArray[np.float32], block: int, rows: int, columns: int) -> NDArray[np.float32]:
    """Return a matrix of `columns` entries per row: a row repeated, turned by one block further in every row."""
    return np.stack(
        [np.tile(np.roll(row, block * index), columns // len(row)) for index in range(rows)]
    )


@pytest.fixture(scope="module")
def every_kind(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Convert one file in which each matrix has another type; return the weights by type."""
    folder = tmp_path_factory.mktemp("every")
    names = dict(zip(MATRICES.values(), ROWS, strict=True))

    def encode(name: str, matrix: NDArray[np.float32]) -> Encoded:
        if name not in names:
            return None
        kind = gguf.GGMLQuantizationType[names[name]]
        blocks = np.frombuffer(bytes.fromhex(ROWS[kind.name]["blocks"]), np.uint8)
        _, size = gguf.GGML_QUANT_SIZES[kind]
        return turned(blocks, size, len(matrix), len(blocks) * matrix.shape[1] // BLOCK), kind

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKIT_HOME", str(folder))
        weights = load_file(
            converted_folder(rewrite(wide, folder / "every.gguf", encode)) / "model.safetensors"
        )
    return {names[gguf_name]: weights[name] for name, gguf_name in MATRICES.items()}


@pytest.mark.parametrize("kind", list(ROWS))
def test_blocks_are_read_as_ggml_reads_them(every_kind: dict[str, torch.Tensor], kind: str) -> None:
    values, weights = np.array(ROWS[kind]["values"], np.float32), every_kind[kind]
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert torch.equal(weights, torch.from_numpy(turned(values, block, *weights.shape)).bfloat16())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 4096, 40).tolist() for _ in range(3)]


@pytest.mark.parametrize("kind", gguf_types.KINDS)
def test_logits_agree_with_those_of_llama_cpp(
    wide: Path, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    llama_library.quantise(wide, tmp_path / f"{kind}.gguf", kind)
    types = {tensor.tensor_type.name for tensor in open_gguf(tmp_path / f"{kind}.gguf").tensors}
    assert types == {kind, "F32"}  # the vectors stay f32
    result = gguf_types.compare(tmp_path / f"{kind}.gguf", prompts, tmp_path)
    assert result.reading.divergence < gguf_types.READING
    assert result.same_file.divergence < max(2 * result.llama_cpp.divergence, gguf_types.READING)
