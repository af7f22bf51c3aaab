"""What a run records about its origin is true, complete and names no one."""

import getpass
import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import BUNDLED, locate
from specbench_kit.runs import provenance
from specbench_kit.runs.provenance import (
    collect,
    git_state,
    hash_file,
    hash_model,
    versions,
    without_folders,
)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    git(package.parent, "init", "--quiet")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "--quiet", "-m", "first")
    return package


def model_folder(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_collect_states_this_machine_and_these_versions() -> None:
    import torch

    provenance_fields = collect(["skit", "bench"])
    assert provenance_fields["argv"] == ["skit", "bench"]
    assert provenance_fields["versions"]["python"] == platform.python_version()
    # The wheel of a build for GPUs calls itself 2.11.0 where the module says 2.11.0+cu130.
    assert (
        provenance_fields["versions"]["torch"].partition("+")[0]
        == torch.__version__.partition("+")[0]
    )
    decisive = {
        "python",
        "torch",
        "transformers",
        "tokenizers",
        "numpy",
        "safetensors",
        "specbench_kit",
    }
    assert decisive <= set(provenance_fields["versions"])
    assert "pytest" not in provenance_fields["versions"]
    hardware = {
        "cpu",
        "physical_cores",
        "usable_cpus",
        "torch_threads",
        "memory_gb",
        "gpu",
        "gpus",
        "cuda",
    }
    assert set(provenance_fields["hardware"]) == hardware
    assert provenance_fields["hardware"]["torch_threads"] == torch.get_num_threads()
    assert provenance_fields["hardware"]["cpu"]
    assert 0.1 < provenance_fields["hardware"]["memory_gb"] < 100_000
    age = datetime.now(UTC) - datetime.fromisoformat(provenance_fields["started_at"])
    assert 0 <= age.total_seconds() < 600
    assert json.loads(json.dumps(provenance_fields, allow_nan=False)) == provenance_fields


def test_a_checkout_that_was_never_installed_names_its_versions_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    installed = versions.__wrapped__()
    monkeypatch.setattr(provenance, "requires", unknown)
    assert versions.__wrapped__() == installed == versions()


def test_collect_names_no_user_no_host_and_no_folder() -> None:
    home = os.path.expanduser("~")
    text = json.dumps(collect([f"{home}/.venv/bin/skit", "bench", f"--out={home}/results", home]))
    assert home not in text
    assert str(Path(__file__).resolve().parents[2]) not in text
    assert platform.node() not in text
    assert getpass.getuser() not in text or getpass.getuser() == "root"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("bench", "bench"),
        ("/opt/venv/bin/skit", "skit"),
        ("--out=/home/jo/results", "--out=results"),
        ("/home/jo", "~"),
        ("/home/jo/", "~/"),
        ("/Users/jo/a b/prompts.jsonl", "prompts.jsonl"),
        ("~jo/x", "x"),
        ("../jo/x", "x"),
        ("local:/data/jo/prompts.jsonl", "local:prompts.jsonl"),
        ("wisp:predictor=/data/p.json,max_draft=3", "wisp:predictor=p.json,max_draft=3"),
        ("org/model", "org/model"),
        ("results/x", "results/x"),
        ("./results", "./results"),
        ("https://jo:secret@host/model", "https:model"),
        ("C:\\Users\\jo\\x", "x"),
        ("plain=vllm://127.0.0.1:8000", "plain=vllm://127.0.0.1:8000"),
        ("vllm+https://host.example:1#org/model", "vllm+https://host.example:1#org/model"),
        ("vllm://host:1#/data/jo/model", "vllm:model"),
        ("//data/jo", "jo"),
    ],
)
def test_paths_that_lead_out_of_the_working_directory_keep_their_last_part(
    argument: str, expected: str
) -> None:
    assert without_folders(argument) == expected


def test_git_state_of_a_checkout(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == (commit, False)
    (checkout.parent / "README.md").write_text("outside the package")
    assert git_state(checkout) == (commit, False)
    (checkout / "new.py").write_text("y = 1\n")
    assert git_state(checkout) == (commit, True)


def test_git_state_reads_its_own_checkout_inside_a_hook(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere/.git")
    assert git_state(checkout)[1] is False


def test_git_state_is_none_for_a_package_installed_inside_a_checkout(
    checkout: Path, tmp_path: Path
) -> None:
    installed = checkout.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "module.py").write_text("x = 1\n")
    assert git_state(installed) == (None, None)
    assert git_state(tmp_path) == (None, None)


def test_git_state_without_git_is_none(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert git_state(checkout) == (None, None)


def test_model_hash_follows_content_and_not_place(tmp_path: Path) -> None:
    first, second = model_folder(tmp_path / "a"), model_folder(tmp_path / "b")
    (second / "README.md").write_text("no part of the model")
    assert hash_model(first) == hash_model(second)
    assert hash_model(model_folder(tmp_path / "c", b"other")) != hash_model(first)
    (second / "config.json").write_text('{"a": 1}')
    assert hash_model(first) != hash_model(second)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "tokenizer.json",
            "tokenizer_config.json",
            "tokenizer.model",
            "tokenizer.model.v3",
            "special_tokens_map.json",
        ),
        *(
            "added_tokens.json",
            "vocab.json",
            "vocab.txt",
            "merges.txt",
            "spiece.model",
            "sentencepiece.bpe.model",
        ),
        *(
            "source.spm",
            "entity_vocab.json",
            "bpe.codes",
            "dict.txt",
            "qwen.tiktoken",
            "tekken.json",
        ),
        *(
            "chat_template.jinja",
            "chat_template.json",
            "additional_chat_templates/tools.jinja",
            "generation_config.json",
        ),
    ],
)
def test_model_hash_covers_every_file_of_a_tokenizer(name: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    hashes = {hash_model(folder)}
    (folder / name).parent.mkdir(exist_ok=True)
    for content in ("one", "other"):
        (folder / name).write_text(content)
        hashes.add(hash_model(folder))
    assert len(hashes) == 3


def test_the_bundled_models_keep_the_hashes_that_predictors_know() -> None:
    hashes = [hash_model(Path(locate(BUNDLED, role).location)) for role in ("target", "draft")]
    assert [digest[:12] for digest in hashes] == ["3e6191e48859", "2835c185bc5b"]


def test_file_hash_is_sha256_and_follows_changes(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    for content in (b"one", b"three"):
        file.write_bytes(content)
        assert hash_file(file) == hashlib.sha256(content).hexdigest()


def test_hashing_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="holds no model"):
        hash_model(tmp_path)
    with pytest.raises(SkitError, match=r"cannot read .*weights: No such file"):
        hash_file(tmp_path / "weights")


def test_a_converted_gguf_file_has_the_hash_of_the_file_whatever_transformers_wrote(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, version in ((first, "5.19"), (second, "5.23")):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"transformers_version": "{version}"}}')
        (folder / "gguf.json").write_text('{"sha256": "0a1b"}')
    assert hash_model(first) == hash_model(second)
    (second / "gguf.json").write_text('{"sha256": "ffff"}')
    assert hash_model(first) != hash_model(second)
