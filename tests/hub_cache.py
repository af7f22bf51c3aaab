"""A cache as the Hugging Face hub's library lays it out, made from models in folders."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from huggingface_hub import constants


def add_model(
    cache: Path,
    hub_id: str,
    model: Path,
    *,
    revision: str = "main",
    links: bool = True,
    without: str = "",
) -> Path:
    """Put a model into the cache at the head of a branch, and return its snapshot, whose name is the commit.

    Without `links`, the snapshot holds the files themselves, as on systems that have no links.
    The file `without` is left out, as by a download that was cut short.
    """
    contents = {file.name: file.read_bytes() for file in sorted(model.iterdir()) if file.is_file()}
    contents.pop(without, None)
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    commit = sha256(f"{hub_id} {revision}".encode()).hexdigest()[:40]
    snapshot = repository / "snapshots" / commit
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    for name, content in contents.items():
        if links:
            blob = repository / "blobs" / sha256(content).hexdigest()
            blob.write_bytes(content)
            (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
        else:
            (snapshot / name).write_bytes(content)
    return snapshot


@contextmanager
def offline_cache(cache: Path) -> Iterator[None]:
    """Have this process read models of the hub from a cache alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "HF_HUB_CACHE", str(cache))
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


def variables(cache: Path) -> Mapping[str, str]:
    """Return the environment variables with which another process reads models from the cache alone."""
    return {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


def delete_blob(snapshot: Path, name: str) -> None:
    """Delete what a link of the snapshot leads to."""
    (snapshot / name).resolve().unlink()


def split_weights(model: Path, folder: Path) -> Path:
    """Return a copy of a model whose weights are in several files with an index."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return folder
