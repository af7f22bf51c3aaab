"""One writer per run directory: a lock that the system lets go of when its process ends, however it ends."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.directory import RESUME_HINT

FILE = ".lock"
_held: dict[Path, BinaryIO] = {}
"""The locks of this process. Closing any handle of a file gives up its lock, so each file is opened once only."""


def hold(folder: Path) -> None:
    """Make this process the only one that writes to the folder; where another does, an error of one line."""
    place = folder.resolve()
    while place not in _held:
        file = _locked(folder, place / FILE)
        # Whoever held it before may have removed the file meanwhile: then this is the lock of nothing.
        if (place / FILE).exists() and os.path.samestat(os.fstat(file.fileno()), (place / FILE).stat()):
            _held[place] = file
        else:
            file.close()


def _locked(folder: Path, path: Path) -> BinaryIO:
    try:
        file = path.open("ab")
    except OSError as error:
        raise SkitError(f"cannot write in {folder}: {error.strerror}; {RESUME_HINT}") from error
    try:
        _lock(file)
    except OSError as error:
        file.close()
        raise SkitError(f"{folder} is being written by another skit: wait until it has ended, then --resume") from error
    return file


def release(folder: Path) -> None:
    """Let other processes write to the folder again, and leave nothing behind."""
    file = _held.pop(folder.resolve(), None)
    if file is not None:
        with suppress(OSError):  # of a file that is open, which not every system removes
            (folder / FILE).unlink()
        file.close()


if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        # Locks of lockf belong to the process: no child inherits one, and network file systems know them.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
