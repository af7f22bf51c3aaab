"""The origin of a run's numbers: versions, command, commit, hardware, and the content of the
models.
"""

import hashlib
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

from specbench_kit.core.errors import SkitError
from specbench_kit.models.gguf import gguf_checksum
from specbench_kit.models.hub_cache import commit_of

_PACKAGE = Path(__file__).resolve().parents[1]
_KIT = "specbench-kit"
_INDIRECT = ("tokenizers", "huggingface-hub")
_PLUGINS = ("specbench_kit.methods", "specbench_kit.datasets", "specbench_kit.predictors")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
_TOKENIZER = (
    *(
        "tokenizer*",
        "*.tokenizer",
        "special_tokens_map.json",
        "added_tokens.json",
        "*vocab*",
        "merges*",
        "*.model",
    ),
    *(
        "*.spm",
        "*.tiktoken",
        "tekken.json",
        "bpe.codes",
        "dict.txt",
        "normalizer.json",
        "emoji.json",
        "byte_maps.json",
    ),
    *("word_*.json", "chat_template*", "additional_chat_templates/*"),
)
"""Every file that a tokenizer of transformers may consist of."""
_MODEL_FILES = ("config.json", "generation_config.json", *_TOKENIZER, *_WEIGHTS)
_VALUE_START = r"(?<![^=:,])"
_SERVER = r"(?<=:)//[\w.\-\[\]:]+(?:#[\w.-]+(?:/[\w.-]+)?)?(?:$|[,=])"
"""Matches what follows the scheme of KIND://HOST:PORT#MODEL, which holds neither a folder nor a
password.
"""
_FOLDERS = re.compile(
    _VALUE_START
    + rf"(?!{_SERVER})"
    + r"(?:~[^/,=]*|\.\.|[A-Za-z]:)?[/\\](?:[^,=]*[/\\])?(?=[^/\\,=])"
)
"""Matches the folders of a path that leads out of the working directory."""


class Provenance(TypedDict):
    """The fields of `run.json` that say when a command ran, of which version, and on what."""

    started_at: str
    argv: list[str]
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]
    platform: str
    hardware: Mapping[str, str | float | None]


def collect(
    argv: Sequence[str], *, arithmetic: bool = False, libraries: Sequence[str] = ()
) -> Provenance:
    """Return the provenance fields of `run.json`; none of them names a user, a secret or a folder
    of this machine.

    The optional `libraries` that this command uses are named with their versions too.
    Pure arithmetic depends on no hardware, and need not wait until torch has looked for GPUs.
    """
    commit, dirty = git_state(_PACKAGE)
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": shareable(argv),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": {**versions(), **{name: version(name) for name in libraries}},
        "platform": platform.platform(),
        "hardware": {} if arithmetic else hardware(),
    }


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python, of the kit, of the packages that it requires, and of its
    plug-ins.

    They are looked up once: the metadata of forty packages are read for it, and a process keeps
    what it has imported.
    """
    needed = [
        re.split(r"[^\w.-]", line, maxsplit=1)[0]
        for line in _requirements()
        if "extra ==" not in line
    ]
    added = [
        point.dist.name
        for group in _PLUGINS
        for point in entry_points(group=group)
        if point.dist is not None
    ]
    found_versions = {"python": platform.python_version()}
    for name in sorted({_KIT, *_INDIRECT, *needed, *added}):
        with suppress(PackageNotFoundError):  # a requirement of another platform is not installed
            found_versions[name.replace("-", "_")] = version(name)
    return MappingProxyType(found_versions)


def _requirements() -> Sequence[str]:
    """Return what the kit requires; a checkout that was never installed says so in its
    pyproject.toml alone.
    """
    try:
        return requires(_KIT) or ()
    except PackageNotFoundError:
        project = _PACKAGE.parent / "pyproject.toml"
        return (
            tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
            if project.exists()
            else ()
        )


def shareable(argv: Sequence[str]) -> list[str]:
    """Return a command line as files keep it that others may read: it names no folder of this
    machine.
    """
    return [without_folders(argument) for argument in argv]


def without_folders(argument: str) -> str:
    """Return a command-line argument with each path outside the working directory reduced to its
    last component.
    """
    home = re.escape(os.path.expanduser("~"))
    named_home = rf"{_VALUE_START}(?:{home}|/(?:home|Users)/[^/,=]+)(?=[/\\,]|$)"
    return _FOLDERS.sub("", re.sub(named_home, "~", argument))


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that tracks `folder`, and True if files in `folder` differ
    from it.
    """
    if not _git(folder, "ls-files", "."):
        return None, None
    return _git(folder, "rev-parse", "--verify", "HEAD"), bool(
        _git(folder, "status", "--porcelain", ".")
    )


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints in `folder`; None if it fails or is not installed."""
    # A git hook exports GIT_DIR and similar variables, which would make git look into the hook's
    # repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def hardware() -> dict[str, str | float | None]:
    """Return processor, physical cores, usable CPUs, torch threads, memory in GB (1e9 bytes), and
    GPUs.
    """
    import psutil
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    model = (
        re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if cpuinfo.exists()
        else None
    )
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cpus": usable_cpus(),
        "torch_threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }


def hash_model(folder: Path) -> str:
    """Return the SHA-256 over a model folder's configuration, tokenizer and weights, by name and
    content.

    A model converted from a GGUF file has the hash of that file: what transformers writes depends
    on its version. One in the cache of the Hugging Face hub has its commit.
    """
    if commit := commit_of(folder):
        return commit
    if checksum := gguf_checksum(folder):
        return hashlib.sha256(f"gguf {checksum}\n".encode()).hexdigest()
    files = sorted(
        {file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.is_file()}
    )
    if not files:
        raise SkitError(
            f"{folder} holds no model: expected config.json and weights in *.safetensors"
        )
    listing = "".join(
        f"{file.relative_to(folder).as_posix()} {hash_file(file)}\n" for file in files
    )
    return hashlib.sha256(listing.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; it is remembered as long as the file's size and modification
    time stay the same.
    """
    try:
        status = path.stat()
        return _hash_file(path.resolve(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error


@cache
def _hash_file(path: Path, _size: int, _modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def usable_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
