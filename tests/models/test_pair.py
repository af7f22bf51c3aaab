"""Loading a pair: what is wrong with it is said in one line."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import PATIENCE_S, TinyPair
from safetensors.torch import load_file, save_file
from tiny_models import decode, make_requests, plain_logits
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import stated
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.named import NAMED_PAIRS
from specbench_kit.models.pair import SLACK, load_pair, resolve_device, resolve_dtype
from specbench_kit.models.runner import Append
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.runs.document import RunDescription


@pytest.fixture
def folder(tiny: TinyPair, tmp_path: Path) -> Path:
    """A target of one's own to spoil."""
    return Path(shutil.copytree(tiny.target, tmp_path / "spoiled"))


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(SkitError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_a_pair_loads_and_decodes(tiny: TinyPair) -> None:
    pair = load_pair(str(tiny.target), str(tiny.draft), device="cpu")
    assert (pair.target.model.dtype, pair.target.model.device.type) == (torch.float32, "cpu")
    assert not pair.target.model.training
    assert pair.eos_ids == {1}
    assert (pair.target.source.label, pair.draft.source.label) == ("target", "draft")
    runners = pair.runners(2, 40)
    assert [runner.capacity for runner in runners] == [40 + SLACK] * 2
    records = decode(
        Autoregressive(), runners, make_requests([[5, 6], [7]], 10), eos_ids=pair.eos_ids
    )
    assert all(1 <= len(record.output_ids) <= 10 for record in records.values())


def test_slots_are_no_longer_than_the_shorter_context(tiny: TinyPair) -> None:
    pair = load_pair(str(tiny.target), str(tiny.draft), device="cpu")
    assert [runner.capacity for runner in pair.runners(1, 10_000)] == [512, 512]


def test_the_generation_settings_name_the_end(folder: Path) -> None:
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert load_pair(str(folder), str(folder), device="cpu").eos_ids == {1, 7}


def test_differing_tokenizers(tiny: TinyPair, folder: Path) -> None:
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {f"x{token}x": number for token, number in vocabulary.items()}
    tokenizer["added_tokens"] = []
    file.write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    message = error_of(lambda: load_pair(str(tiny.target), str(folder), device="cpu"))
    assert message.startswith(
        f"the tokenizers of target '{tiny.target}' and draft '{folder}' share no token"
    )


def with_added(folder: Path, *tokens: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(folder)


def padded(folder: Path, vocabulary: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    model.save_pretrained(folder)


def test_added_tokens_of_one_tokenizer_are_masked_in_the_draft_alone(
    tiny: TinyPair, folder: Path
) -> None:
    """A reasoning target with a token of its own: it may say it, the draft reads it and never drafts it."""
    draft = Path(shutil.copytree(tiny.draft, folder.parent / "padded"))
    with_added(folder, "<think>")
    for path in (folder, draft):
        padded(path, 264)
    pair = load_pair(str(folder), str(draft), device="cpu")
    assert (pair.masked, pair.vocabulary) == ((258,), 264)
    for loaded in (pair.target, pair.draft):
        weight = loaded.model.lm_head.weight
        weight[258] = weight[:258].mean(0)  # so that its logit is never the least by itself
    target, small = pair.runners(1, 40)
    rows = [Append(0, [258, 7, 9], keep=3)]
    target_logits, drafted = target.forward(rows)[0], small.forward(rows)[0]
    torch.testing.assert_close(
        target_logits[:, :259],
        plain_logits(pair.target.model, [258, 7, 9])[:, :259],
        atol=1e-4,
        rtol=1e-4,
    )
    assert (target_logits[:, 258] > target_logits.amin(-1)).all()
    assert torch.equal(drafted[:, 258], drafted.amin(-1))
    assert pair.describe(lambda _: "0")["draft"].masked_tokens == 1
    caution = "TOKENIZERS DIFFER in 1 added tokens: they are never drafted, but the target may emit its own."
    assert caution in setting_cautions(RunDescription(models=pair.describe(lambda _: "0")))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "model.gguf"]
)
def test_a_pointer_of_git_lfs_is_named_with_what_to_do(
    name: str, tiny: TinyPair, tmp_path: Path
) -> None:
    folder = tmp_path / "clone"
    if name.endswith(".gguf"):
        folder.mkdir()
    else:
        shutil.copytree(tiny.target, folder)
    (folder / name).write_text(POINTER)
    message = error_of(lambda: load_pair(str(folder), None, device="cpu"))
    assert message.startswith(
        f"'{name}' is a pointer of git-lfs, and its contents were not fetched: run `git lfs pull`"
    )


@pytest.mark.parametrize("padded_ones", [("target",), ("draft",), ("target", "draft")])
def test_a_padding_token_beyond_the_vocabulary_is_no_obstacle(
    padded_ones: tuple[str, ...], tiny: TinyPair, tmp_path: Path
) -> None:
    """As people train: a [PAD] is added to the tokenizer, and the model's embedding stays as it was."""
    folders = {"target": str(tiny.target), "draft": str(tiny.draft)}
    for role in padded_ones:
        folders[role] = shutil.copytree(folders[role], tmp_path / role)
        tokenizer = AutoTokenizer.from_pretrained(folders[role])
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        tokenizer.save_pretrained(folders[role])
    pair = load_pair(str(folders["target"]), str(folders["draft"]), device="cpu")
    assert (pair.masked, pair.vocabulary) == ((), 258)
    target, small = pair.runners(1, 40)
    for runner in (target, small):
        assert runner.forward([Append(0, [5, 7, 9], keep=1)])[0].shape[-1] == 258


@pytest.mark.parametrize("spoiled", ["target", "draft"])
def test_a_vocabulary_that_lacks_tokens_is_one_line(
    spoiled: str, tiny: TinyPair, folder: Path
) -> None:
    padded(folder, 200)
    folders = {"target": str(tiny.target), "draft": str(tiny.draft)} | {spoiled: str(folder)}
    message = error_of(lambda: load_pair(**folders, device="cpu"))
    assert message.startswith(
        "model 'spoiled' has a vocabulary of 200 tokens and the tokenizer's go up to 257: "
    )


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (
            {"repetition_penalty": 1.3, "suppress_tokens": [5, 6]},
            {"repetition_penalty": "1.3", "suppress_tokens": "[5, 6]"},
        ),
        (
            {"no_repeat_ngram_size": 3, "min_new_tokens": 4},
            {"no_repeat_ngram_size": "3", "min_new_tokens": "4"},
        ),
        (
            {"bad_words_ids": [[7]], "forced_eos_token_id": 1},
            {"bad_words_ids": "[[7]]", "forced_eos_token_id": "1"},
        ),
        ({"repetition_penalty": 1.0, "min_length": 0, "eos_token_id": 1, "temperature": 0.6}, {}),
    ],
)
def test_generation_settings_that_are_ignored_are_named(
    asked: object, named: dict[str, str], folder: Path
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(asked))
    models = load_pair(str(folder), str(folder), device="cpu").describe(lambda _: "0")
    assert (models["target"].ignored_settings or {}) == named
    cautions = setting_cautions(RunDescription(models=models))
    assert len(cautions) == bool(named)
    assert all(f"{name} {value}" in cautions[0] for name, value in named.items())


def test_a_run_reads_back_what_a_pair_says_of_its_models(folder: Path) -> None:
    described = load_pair(str(folder), str(folder), device="cpu").describe(lambda _: "0")
    written = json.loads(json.dumps(stated(described)))
    assert RunDescription.read({"models": written}).models == described
    assert all(model.keys() >= {"name", "hash", "parameters"} for model in written.values())
    assert all(value is not None for model in written.values() for value in model.values())


def test_missing_config(tiny: TinyPair, folder: Path) -> None:
    (folder / "config.json").unlink()
    message = error_of(lambda: load_pair(str(tiny.target), str(folder), device="cpu"))
    assert message == f"the folder '{folder}' holds no model: config.json is missing"


@pytest.mark.parametrize("kept", [0, 5, 1000])
def test_truncated_weights(folder: Path, kept: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    message = error_of(lambda: load_pair(str(folder), str(folder), device="cpu"))
    assert message.startswith("cannot load model 'spoiled': ")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_broken_json(folder: Path, name: str) -> None:
    (folder / name).write_text('{"model_type": "lla')
    assert error_of(lambda: load_pair(str(folder), str(folder), device="cpu")).startswith(
        "cannot load model 'spoiled'"
    )


def test_missing_weights_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert error_of(lambda: load_pair(str(folder), str(folder), device="cpu")).startswith(
        "cannot load model 'spoiled'"
    )


def test_weights_that_lack_a_tensor(folder: Path) -> None:
    """Nothing is filled with random numbers behind the user's back."""
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    message = error_of(lambda: load_pair(str(folder), str(folder), device="cpu"))
    assert "model.layers.1.mlp.up_proj.weight" in message


@pytest.mark.parametrize(
    ("size", "named"),
    [
        (
            "hidden_size",
            r"\S+ has the shape \[258, 32\] in its weights, but its config\.json asks for \[258, 64\]; use ",
        ),
        (
            "vocab_size",
            r"\S+ has the shape \[258, 32\] in its weights, but its config\.json asks for \[516, 32\]; use ",
        ),
        ("num_hidden_layers", r"its weights lack model\.layers\.2\."),
    ],
)
def test_weights_of_another_size_are_one_line(
    size: str, named: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Transformers would print a table of all weights."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {size: 2 * config[size]}))
    message = error_of(lambda: load_pair(str(folder), str(folder), device="cpu"))
    assert re.match(f"cannot load model 'spoiled': {named}", message)
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_an_architecture_that_transformers_does_not_know(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "nonsense",
        "architectures": ["No"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert error_of(lambda: load_pair(str(folder), str(folder), device="cpu")).startswith(
        "cannot load model 'spoiled'"
    )


@pytest.mark.parametrize(
    "name", ["/nowhere/at/all", "./nowhere", "~nobody/model", "just-a-word", "a/b/c"]
)
def test_names_that_are_neither_folder_nor_hub_id(name: str, tiny: TinyPair) -> None:
    message = error_of(lambda: load_pair(str(tiny.target), name, device="cpu"))
    pairs = ", ".join(f"'{name}'" for name in NAMED_PAIRS)
    hub_id = "a hub id like owner/name or owner/name@revision"
    advice = f"give a folder, a GGUF file, {hub_id}, {pairs}, 'bundled' or 'synthetic'"
    assert message.startswith(f"no draft model '{name}': {advice}")


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:-1", "CPU", "", "cpu:0"])
def test_unknown_device(name: str) -> None:
    assert (
        error_of(lambda: resolve_device(name))
        == f"unknown device '{name}': use auto, cpu, cuda or cuda:N"
    )


def test_a_cuda_device_that_is_not_there() -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    assert error_of(lambda: resolve_device(absent)).startswith(
        f"device '{absent}' is not there: torch sees "
    )


def test_unknown_dtype() -> None:
    message = error_of(lambda: resolve_dtype("int8", torch.device("cpu")))
    assert message == "unknown dtype 'int8': use auto, bfloat16, float16, float32"


def test_automatic_dtype_depends_on_the_device() -> None:
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float16", torch.device("cpu")) == torch.float16


@pytest.mark.nightly  # a process of its own; test_bad_input.py has a hub that refuses connections
def test_a_hub_id_without_network(tmp_path: Path) -> None:
    """The hub's address takes connections and never answers: the end comes within the time limit, in one line."""
    script = (
        "from specbench_kit.core.errors import SkitError\n"
        "from specbench_kit.models.pair import load_pair\n"
        "try:\n    load_pair('someone/some-model', 'bundled', device='cpu')\n"
        "except SkitError as error:\n    print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        removed = {
            "HF_HUB_OFFLINE",
            "http_proxy",
            "https_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "all_proxy",
            "ALL_PROXY",
        }
        environment = {name: value for name, value in os.environ.items() if name not in removed}
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
        settings = {
            "capture_output": True,
            "text": True,
            "timeout": PATIENCE_S,
            "env": environment,
            "check": True,
        }
        done = subprocess.run([sys.executable, "-c", script], **settings)
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("cannot load model 'someone/some-model': ")
