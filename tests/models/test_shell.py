"""Shells: models whose weights stay in their files until something computes with them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import MODELS, in_pieces
from safetensors.torch import load_file, save_file
from tiny_models import make_runner, plain_logits, random_prompts
from transformers import AutoModelForCausalLM, PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import locate
from specbench_kit.models.executors import library
from specbench_kit.models.pair import LoadedModel, load_model, load_pair
from specbench_kit.models.runner import Append
from specbench_kit.models.weights.stored import StoredTensor, stored_tensor

needs_native = pytest.mark.skipif(library.load_library() is None, reason="no C++ compiler")
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def save(
    model: PreTrainedModel, folder: Path, dtype: torch.dtype = torch.float32, **options: object
) -> Any:
    """Write a model in a type, and return it as transformers loads it in float32."""
    model.to(dtype).save_pretrained(folder, **options)
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        .eval()
        .requires_grad_(False)
    )


def shell_in(folder: Path, **options: Any) -> LoadedModel:
    return load_model(locate(str(folder), "target"), device="cpu", **options)


def is_empty(loaded: LoadedModel) -> bool:
    return all(stored_tensor(parameter) is not None for parameter in loaded.shell.parameters())


@needs_native
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_reading_from_files_changes_no_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = save(MODELS[name](), tmp_path, dtype)
    loaded = shell_in(tmp_path)
    (text,) = random_prompts([40], model.config.vocab_size)
    runner = loaded.runner(2, 64, model.config.vocab_size, "native")
    assert is_empty(loaded)
    assert torch.equal(
        in_pieces(runner, text, 40), in_pieces(make_runner(model, 2, 64, "native"), text, 40)
    )


@pytest.mark.parametrize(
    "name", ["llama", "tied, one head of keys", "qwen2, biases", "llama3 rope", "yarn rope"]
)
def test_a_filled_shell_is_the_model_that_transformers_loads(name: str, tmp_path: Path) -> None:
    model = save(MODELS[name](), tmp_path, torch.bfloat16)
    loaded = shell_in(tmp_path)
    assert is_empty(loaded)
    assert (loaded.device.type, loaded.dtype, loaded.shell.training) == (
        "cpu",
        torch.float32,
        False,
    )
    assert loaded.shell.num_parameters() == model.num_parameters()
    assert type(loaded.shell).__name__ == type(model).__name__
    (text,) = random_prompts([40], model.config.vocab_size)
    assert torch.equal(plain_logits(loaded.model, text), plain_logits(model, text))
    assert not is_empty(loaded)
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    tied = loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert tied == model.config.tie_word_embeddings


@needs_native
def test_weights_that_were_changed_in_memory_are_those_that_are_run(tmp_path: Path) -> None:
    model = save(MODELS["llama"](), tmp_path)
    loaded = shell_in(tmp_path)
    for causal_model in (model, loaded.model):
        causal_model.lm_head.weight[3] = causal_model.lm_head.weight[4]
    runner = loaded.runner(1, 64, None, "native")
    assert torch.equal(
        in_pieces(runner, [1, 2], 2), in_pieces(make_runner(model, 1, 64, "native"), [1, 2], 2)
    )


@pytest.mark.parametrize("executor", ["transformers", "llama-cpu"])
def test_executors_of_another_layout_get_a_model_with_weights(
    executor: str, tmp_path: Path
) -> None:
    model = save(MODELS["llama"](), tmp_path)
    runner = shell_in(tmp_path).runner(1, 64, None, executor)
    computed = runner.forward([Append(runner.acquire(), [1, 2, 3], keep=3)])[0]
    torch.testing.assert_close(computed, plain_logits(model, [1, 2, 3]), atol=2e-4, rtol=2e-4)


@needs_native
def test_a_draft_that_exits_early_shares_what_its_target_reads(tmp_path: Path) -> None:
    shutil.copytree(locate("bundled", "target").location, tmp_path, dirs_exist_ok=True)
    pair = load_pair(str(tmp_path), "early-exit:2", device="cpu")
    draft = pair.runners(1, 40)[1]
    before = draft.forward([Append(draft.acquire(), [5, 6, 7], keep=3)])[0].clone()
    assert is_empty(pair.needed_draft)
    torch.testing.assert_close(
        before, plain_logits(pair.needed_draft.model, [5, 6, 7]), atol=1e-4, rtol=1e-4
    )
    assert pair.target.shell.model.layers[0] is pair.needed_draft.shell.model.layers[0]


def test_a_checkpoint_in_several_files_is_read_from_all_of_them(tmp_path: Path) -> None:
    model = save(MODELS["llama"](), tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = shell_in(tmp_path)
    assert is_empty(loaded)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight)


def test_the_end_tokens_are_those_of_the_generation_config_else_of_the_config(
    tmp_path: Path,
) -> None:
    save(MODELS["llama"](), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert shell_in(tmp_path).shell.generation_config.eos_token_id == [4, 5]
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 6}))
    assert shell_in(tmp_path).shell.generation_config.eos_token_id == 6


def with_untied_output(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def in_float64(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    double = {name: weight.double() for name, weight in weights.items()}
    save_file(double, folder / "model.safetensors", {"format": "pt"})


def in_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("change", [with_untied_output, in_float64, in_a_pickle])
def test_what_is_not_plain_is_left_to_transformers(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    save(MODELS["tied, one head of keys"](), tmp_path)
    change(tmp_path)
    loaded = shell_in(tmp_path)
    assert not is_empty(loaded)
    assert plain_logits(loaded.model, [1, 2]).isfinite().all()


def lose(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:3000])


def replace_by_another(file: Path) -> None:
    save_file({"other": torch.zeros(3)}, file)


@pytest.mark.parametrize("change", [lose, cut, replace_by_another])
def test_files_that_change_before_they_are_read_are_one_line(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    save(MODELS["llama"](), tmp_path)
    loaded = shell_in(tmp_path)
    change(tmp_path / "model.safetensors")
    with pytest.raises(
        SkitError,
        match=r"cannot read model\.embed_tokens\.weight in .*has changed since the run began",
    ):
        _ = loaded.model


def test_a_tensor_of_another_shape_is_not_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(SkitError, match="has changed since the run began"):
        StoredTensor(tmp_path / "a.safetensors", "a", (4,), torch.float32).read()
