"""Files that appear whole or not at all, packed files, and files that are not there in truth."""

import lzma
import os
from pathlib import Path

from specbench_kit.core.errors import SkitError, require


def replace_file(path: Path, content: bytes) -> None:
    """Write a temporary file beside `path` and rename it, so that no reader sees half of it; make
    the folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


LARGEST_BYTES = 500_000_000
"""Bytes up to which a packed file is unpacked: a few bytes can stand for any number of them."""


def unpack_xz(content: bytes) -> bytes:
    """Return what a packed file holds; raise ValueError if it is cut short or too large, LZMAError
    if it is no xz.
    """
    unpacking = lzma.LZMADecompressor()
    text = unpacking.decompress(content, LARGEST_BYTES)
    if not unpacking.eof:
        raise ValueError(f"it is cut short, or larger than {LARGEST_BYTES:,} bytes")
    return text


def require_readable(path: Path, version: object, newest: int) -> None:
    """Raise SkitError if a file's version of its format is newer than the newest one that this kit
    reads.
    """
    require(
        not isinstance(version, int) or version <= newest,
        f"{path} was written by a newer specbench-kit (version {version} of the format, this one reads up to "
        f"{newest}): upgrade specbench-kit",
    )


POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of the text that git leaves in place of a large file which was not fetched."""
POINTER_BYTES = 1024
"""More bytes than such a text has."""


def require_contents(folder: Path) -> None:
    """Raise SkitError if a file of a model is a pointer of git-lfs, in place of what it points
    to.
    """
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        require_no_pointer(file)


def require_no_pointer(file: Path) -> None:
    """Raise SkitError if a file is a pointer of git-lfs."""
    if file.stat().st_size >= POINTER_BYTES:
        return
    with file.open("rb") as content:
        if content.read(len(POINTER)) == POINTER:
            raise SkitError(
                f"'{file.name}' is a pointer of git-lfs, and its contents were not fetched: run `git lfs pull` in "
                f"'{file.parent}', or download the file itself"
            )
