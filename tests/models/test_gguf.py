"""GGUF files: converted once, loaded like any other model, and refused in one line where they cannot be."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from gguf_files import quantised, rewrite
from llama_reference import llama_reference
from nightly import nightly_except
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks import gguf_file
from specbench_kit.core.errors import SkitError
from specbench_kit.models import gguf as gguf_reader
from specbench_kit.models.catalogue import locate
from specbench_kit.models.gguf import RECORD, converted_folder, open_gguf
from specbench_kit.models.pair import LoadedModel, load_model, load_pair
from specbench_kit.models.weights.blocks import ConvertedRecord, TensorPlace, read_record

pytestmark = pytest.mark.usefixtures("home")

ONES = np.ones(64, np.float32)


@pytest.fixture(scope="module")
def original() -> LoadedModel:
    """The bundled draft model: one layer, and a tokenizer with merges."""
    return load_model(locate("bundled", "draft"))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(locate("bundled", "draft").location)


@pytest.fixture
def path(original: LoadedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    gguf_file.write(original, tokenizer, tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_a_file_gives_the_weights_and_the_tokenizer_that_it_was_made_of(
    path: Path, original: LoadedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    pair = load_pair(str(path), None)
    for name, weight in original.model.state_dict().items():
        torch.testing.assert_close(
            pair.target.model.state_dict()[name], weight.bfloat16().float(), rtol=0, atol=0
        )
    text = "Once upon a time, 12 + 30 = 42?\n\n1. a\n    20"
    assert (
        pair.tokenizer(text)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    assert pair.eos_ids == {tokenizer.eos_token_id}
    assert pair.target.source.label == "tiny"


def test_texts_begin_as_the_file_says(
    path: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    file = rewrite(path, tmp_path / "bos.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    converted = AutoTokenizer.from_pretrained(converted_folder(file))
    assert converted("A text.")["input_ids"] == tokenizer("A text.")["input_ids"]
    assert converted("A text.")["input_ids"][0] == tokenizer.bos_token_id


def test_answers_end_with_every_end_token_of_the_file(path: Path, tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 5}
    pair = load_pair(str(rewrite(path, tmp_path / "ends.gguf", metadata=changes)), None)
    assert pair.eos_ids == {5, 7, pair.tokenizer.eos_token_id}


SCALINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"scaling.type": "linear", "scaling.factor": 2}, {"rope_type": "linear", "factor": 2.0}),
    ({"scaling.factor": 2}, {"rope_type": "linear", "factor": 2.0}),
    ({"scale_linear": 2.5}, {"rope_type": "linear", "factor": 2.5}),
    ({"scaling.factor": 2, "scale_linear": 4.0}, {"rope_type": "linear", "factor": 2.0}),
    ({"scaling.type": "none", "scaling.factor": 2}, {"rope_type": "default"}),
    ({"scaling.factor": 0}, {"rope_type": "default"}),
    (
        {"scaling.type": "yarn", "scaling.factor": 4, "scaling.original_context_length": 128},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
]


@pytest.mark.parametrize(("stated", "expected"), SCALINGS)
def test_rotary_frequencies_are_scaled_as_the_file_says(
    path: Path, tmp_path: Path, stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    changes = {f"llama.rope.{name}": value for name, value in stated.items()}
    rope = load_pair(
        str(rewrite(path, tmp_path / "scaled.gguf", metadata=changes)), None
    ).target.text_config
    assert expected.items() <= rope.rope_parameters.items()
    assert rope.rope_parameters["rope_theta"] == 10000


POSITIONS = 200


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"scaling.factor": 4.0},
        {"scale_linear": 2.5},
        {"scaling.type": "none", "scaling.factor": 4.0},
        {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64},
        {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.attn_factor": 0.5},
        {"freq_base": 500.0},
    ],
)
def test_logits_after_many_positions_are_those_of_llama_cpp(
    path: Path, tmp_path: Path, stated: dict[str, Any]
) -> None:
    changes = {f"llama.rope.{name}": value for name, value in stated.items()}
    file = rewrite(path, tmp_path / "scaled.gguf", metadata=changes)
    prompt = np.random.default_rng(0).integers(2, 4096, POSITIONS).tolist()
    with llama_reference(file) as reference:
        likeliest = reference.logarithms(prompt, 20)
    model = load_pair(str(file), None).target.model
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    own = {token: float(logits[token]) for token in likeliest}
    assert own == pytest.approx(likeliest, abs=0.01)


def test_the_base_of_the_frequencies_is_that_of_the_file_or_llama_cpp_s(
    path: Path, tmp_path: Path
) -> None:
    for stated, expected in (({}, 10000), ({"llama.rope.freq_base": 500000.0}, 500000)):
        file = rewrite(path, tmp_path / "base.gguf", metadata=stated, drop="llama.rope.freq_base")
        assert (
            load_pair(str(file), None).target.text_config.rope_parameters["rope_theta"] == expected
        )


def test_the_factors_of_llama_3_become_its_scaling(
    path: Path, original: LoadedModel, tmp_path: Path
) -> None:
    plain = original.model.model.rotary_emb.inv_freq
    # The wavelengths at which Llama 3 begins and ends to divide frequencies, here by 8, for a context of 8192.
    wavelengths, low, high = 2 * np.pi / plain.double().numpy(), 8192 / 1, 8192 / 4
    smooth = (8192 / wavelengths - 1) / (4 - 1)
    between = 1 / ((1 - smooth) / 8 + smooth)
    factors = np.where(wavelengths < high, 1, np.where(wavelengths > low, 8, between)).astype(
        np.float32
    )
    file = rewrite(path, tmp_path / "llama3.gguf", tensors={"rope_freqs.weight": factors})
    scaled = load_pair(str(file), None).target.model
    assert scaled.config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(scaled.model.rotary_emb.inv_freq, plain / torch.from_numpy(factors))


def test_parts_of_a_model_are_joined(path: Path, tmp_path: Path) -> None:
    names = [tensor.name for tensor in open_gguf(path).tensors]
    folder = tmp_path / "parts"
    folder.mkdir()
    halves = [names[8:], names[:8]]
    for number, left_out in enumerate(halves):
        changes = {"split.count": 2, "split.no": number}
        rewrite(
            path,
            folder / f"tiny-0000{number + 1}-of-00002.gguf",
            metadata=changes,
            without=left_out,
        )
    one_file, joined = load_pair(str(path), None).target, load_pair(str(folder), None).target
    assert joined.source.label == "tiny"
    for name, weight in one_file.model.state_dict().items():
        assert torch.equal(joined.model.state_dict()[name], weight)
    (folder / "tiny-00001-of-00002.gguf").unlink()
    for name in (folder, folder / "tiny-00002-of-00002.gguf"):
        with pytest.raises(
            SkitError,
            match=r"one of 2 parts of a model, and tiny-00001-of-00002\.gguf is not beside",
        ):
            locate(str(name), "target")


@pytest.mark.parametrize(
    "kind", nightly_except(["F16", "Q8_0"], ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
)
def test_every_type_is_dequantised_as_the_format_says(
    path: Path, tmp_path: Path, kind: str
) -> None:
    file = rewrite(path, tmp_path / f"{kind}.gguf", quantised(kind))
    expected = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type)
        for tensor in open_gguf(file).tensors
    }
    weights = load_file(converted_folder(file) / "model.safetensors")
    down = torch.from_numpy(np.array(expected["blk.0.ffn_down.weight"])).bfloat16()
    assert torch.equal(weights["model.layers.0.mlp.down_proj.weight"], down)
    embedding = torch.from_numpy(np.array(expected["token_embd.weight"])).bfloat16()
    assert torch.equal(weights["model.embed_tokens.weight"], embedding)


def test_a_file_is_converted_once_and_again_when_it_changes(
    path: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = converted_folder(path)
    assert "converting tiny.gguf" in capsys.readouterr().err
    assert (first / RECORD).is_file()
    assert converted_folder(path) == first
    assert capsys.readouterr().err == ""
    shutil.copy(path, tmp_path / "copy.gguf")
    assert converted_folder(tmp_path / "copy.gguf") == first
    rewrite(path, tmp_path / "other.gguf", quantised("Q8_0")).replace(path)
    assert converted_folder(path) != first
    (first / RECORD).unlink()  # as an interrupted conversion would leave it
    assert converted_folder(tmp_path / "copy.gguf") == first
    assert (first / RECORD).is_file()
    assert len([folder for folder in (home / "models").iterdir() if folder.is_dir()]) == 2


def test_a_folder_that_another_process_finished_first_is_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = gguf_reader._write_model

    def write_second(file: Path, partial: Path, *details: object) -> Any:
        tensors = write(file, partial, *details)
        folder = partial.with_suffix("")
        shutil.copytree(partial, folder)
        (folder / RECORD).write_text(json.dumps({"rules": gguf_reader.RULES_VERSION}))
        (folder / "in_use").touch()
        return tensors

    monkeypatch.setattr(gguf_reader, "_write_model", write_second)
    folder = converted_folder(path)
    assert (folder / "in_use").exists()
    assert [entry for entry in folder.parent.iterdir() if entry.is_dir()] == [folder]


def test_a_folder_with_one_file_stands_for_it(path: Path, tmp_path: Path) -> None:
    assert locate(str(tmp_path), "target") == locate(str(path), "draft")
    shutil.copy(path, tmp_path / "second.gguf")
    with pytest.raises(SkitError, match="holds 2 GGUF models: name one of their files"):
        locate(str(tmp_path), "target")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"metadata": {"general.architecture": "rwkv6"}},
            "architecture 'rwkv6'.*give the original",
        ),
        ({"metadata": {"split.count": 3}}, "one of 3 parts.*llama-gguf-split --merge"),
        ({"drop": "tokenizer."}, "holds no tokenizer: give the original model"),
        (
            {"without": ("blk.1.ffn_down.weight",)},
            r"lacks tensors: model\.layers\.1\.mlp\.down_proj\.weight would be",
        ),
        (
            {"tensors": {"blk.0.attn_v.bias": ONES}},
            r"its architecture lacks in transformers: .*v_proj\.bias",
        ),
        (
            {"tensors": {"rope_factors_long.weight": ONES}},
            "scales rotary frequencies by rope_factors_long.weight",
        ),
        ({"tensors": {"rope_freqs.weight": 7 * ONES[:32]}}, "factors that are not Llama 3's"),
        (
            {"metadata": {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4}},
            "frequencies by 'longrope'",
        ),
        (
            {"metadata": {"llama.rope.scaling.factor": 4, "llama.rope.scaling.attn_factor": 2.0}},
            "scales attention by 2",
        ),
        ({"metadata": {"llama.rope.scaling.alpha": 2.0}}, "frequencies by alpha, unknown here"),
        (
            {
                "metadata": {"llama.rope.scale_linear": 4.0},
                "tensors": {"rope_freqs.weight": 7 * ONES[:32]},
            },
            "twice, by factors and by 4",
        ),
        (
            {"metadata": {"tokenizer.ggml.pre": "unheard-of"}},
            "splits text by the rule 'unheard-of'",
        ),
    ],
)
def test_what_cannot_be_converted_is_one_line(
    path: Path, home: Path, tmp_path: Path, changes: Any, message: str
) -> None:
    file = rewrite(path, tmp_path / "bad.gguf", **changes)
    with pytest.raises(SkitError, match=message):
        converted_folder(file)
    assert not list((home / "models").glob("gguf-*"))


def test_damaged_and_foreign_files_are_one_line(
    path: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SkitError, match=r"cannot read 'cut\.gguf'.*damaged or cut off"):
        converted_folder(cut)
    cut.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SkitError, match=r"cannot read 'cut\.gguf'.*damaged or cut off"):
        converted_folder(cut)
    assert capsys.readouterr().err == ""
    foreign = tmp_path / "foreign.gguf"
    foreign.write_text("not a model")
    with pytest.raises(SkitError, match=r"'foreign\.gguf' is not a GGUF file"):
        converted_folder(foreign)
    with pytest.raises(SkitError, match=r"there is no file '.*missing\.gguf'"):
        locate(str(tmp_path / "missing.gguf"), "target")
    assert not list((home / "models").glob("gguf-*"))


def test_the_record_of_a_converted_folder_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_record(tmp_path) == ConvertedRecord()
    place = {"type": 12, "offset": 64, "shape": [4, 256], "bytes": 576, "heads": 0}
    record = {"file": "a.gguf", "sha256": "ab", "rules": 2, "tensors": {"w": place}, "later": 1}
    (tmp_path / RECORD).write_text(json.dumps(record))
    read = read_record(tmp_path)
    assert (read.sha256, read.rules) == ("ab", 2)
    assert read.tensors["w"] == TensorPlace(12, 64, [4, 256], 576, 0)
    (tmp_path / RECORD).write_text(json.dumps({**record, "tensors": {"w": {"type": 12}}}))
    assert read_record(tmp_path) == ConvertedRecord()
