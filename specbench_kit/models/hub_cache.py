"""Models of the Hugging Face hub, as folders of its cache on this machine. Imports nothing heavy.

The cache has a folder per commit, `models--OWNER--NAME/snapshots/COMMIT`. What lies there is
loaded like any other folder, and the folder's name is the commit that runs record.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

Result = TypeVar("Result")
MAIN = "main"
"""The branch that a hub id without a revision stands for."""
CONFIG = "config.json"
TEXT_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")
"""The files of a configuration and a tokenizer."""
SUBFOLDERS = "*/*"
"""Files in folders of a repository: copies of the model in other formats, which nothing here
reads.
"""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files with all weights, in the order of preference of transformers; an index beside them names
their parts.
"""
INDEX = ".index.json"


def commit_of(folder: Path) -> str | None:
    """Return the commit whose snapshot a folder of the hub's cache is; None for any other
    folder.
    """
    return None if _repository_folder(folder) is None else folder.resolve().name


def hub_id_of(folder: Path) -> str | None:
    """Return the hub id, owner/name, of the model whose snapshot a folder is; None for any other
    folder.
    """
    repository = _repository_folder(folder)
    return None if repository is None else repository.name.partition("--")[2].replace("--", "/")


def _repository_folder(folder: Path) -> Path | None:
    snapshots = folder.resolve().parent
    is_snapshot = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    return snapshots.parent if is_snapshot else None


def weight_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the files with a model's weights, whether or not they are here.

    A single file comes before an index of several, and safetensors before torch's own format, as in
    transformers.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return (name,)
        if (index := folder / f"{name}{INDEX}").is_file():
            try:
                return tuple(
                    sorted(
                        set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
                    )
                )
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise SkitError(f"cannot read {index}: {first_line(error)}") from error
    return WEIGHTS[:1]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub: its repository, the revision that was asked for, and whether the cache
    alone may serve it.
    """

    repository: str
    revision: str = MAIN
    """A branch, tag or commit."""
    local_only: bool = False
    known_file: str = CONFIG
    """A file that every snapshot of it has, by which the snapshot is found."""

    @property
    def name(self) -> str:
        """Return the hub id, with the revision where it is not the main branch."""
        return self.repository if self.revision == MAIN else f"{self.repository}@{self.revision}"

    def snapshot(self) -> Path:
        """Return the folder of the model, of which its configuration is here; the same one
        throughout a process.
        """
        return self._getting(lambda: _snapshot(self, _cache_folder()))

    def with_tokenizer(self) -> Path:
        """Return the folder of the model once its configuration and tokenizer are here."""
        return self._completed(TEXT_FILES)

    def with_weights(self) -> Path:
        """Return the folder of the model once all of it is here; what is missing is an error of one
        line.
        """
        folder = self.with_tokenizer()
        for name in WEIGHTS:
            self._completed((name,))
            if (names := weight_names(folder)) != WEIGHTS[:1] or (folder / names[0]).is_file():
                self._completed(names)
                break
        missing = [name for name in weight_names(folder) if not (folder / name).is_file()]
        if missing:
            # Links of the cache whose file was deleted count as missing, too.
            raise SkitError(
                f"cannot load model '{self.name}': {folder} lacks {missing[0]}{self._advice()}"
            )
        return folder

    def _completed(self, patterns: tuple[str, ...]) -> Path:
        folder = self.snapshot()
        if not self.local_only:
            self._getting(
                lambda: _download(self.repository, folder.name, patterns, _cache_folder())
            )
        return folder

    def _getting(self, step: Callable[[], Result]) -> Result:
        try:
            return step()
        except Exception as error:  # the hub's client lets through whatever its libraries raise
            raise SkitError(f"cannot load model '{self.name}': {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        from huggingface_hub import errors

        if isinstance(error, errors.GatedRepoError):
            return "its licence has to be accepted: do so on its page of the hub, and log in with `hf auth login`"
        if isinstance(error, errors.RepositoryNotFoundError):
            return "the hub has no such model, or it is private: check its name, or log in with `hf auth login`"
        if isinstance(error, errors.RevisionNotFoundError):
            return (
                f"the hub has no revision '{self.revision}' of it: name a branch, a tag or a commit"
            )
        if isinstance(error, errors.LocalEntryNotFoundError):
            return f"it is not in the hub's cache {_cache_folder()}{self._advice()}"
        if isinstance(error, errors.EntryNotFoundError):
            return f"the hub has no {self.known_file} of it: a GGUF file has to be downloaded and named by its path"
        return first_line(error)

    def _advice(self) -> str:
        """Return how to get what is missing, which depends on why it was not downloaded."""
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return (
                ", and HF_HUB_OFFLINE forbids a download: unset it, set HF_HUB_CACHE or HF_HOME to where the model is, "
                "or name a folder"
            )
        if self.local_only:
            return ", and the hub does not answer: try again, or name a folder"
        return ": download it again, or name a folder"


def _cache_folder() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


@cache
def _snapshot(model: HubModel, cache_folder: str) -> Path:
    """Find the snapshot once, so that a branch that moves on meanwhile does not mix two commits."""
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            model.repository,
            model.known_file,
            revision=model.revision,
            local_files_only=model.local_only,
            cache_dir=cache_folder,
        )
    ).parent


@cache
def _download(repository: str, commit: str, patterns: tuple[str, ...], cache_folder: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        repository,
        revision=commit,
        allow_patterns=list(patterns),
        ignore_patterns=[SUBFOLDERS],
        cache_dir=cache_folder,
    )
