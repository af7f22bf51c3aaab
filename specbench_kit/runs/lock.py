"""One writer per run directory: a lock that the operating system releases when its process ends, however it ends."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.directory import RESUME_HINT

FILE = ".lock"
_locks: dict[Path, FileLock] = {}
"""The locks that this process has, by folder."""


def acquire(folder: Path) -> None:
    """Make this process the only writer of `folder`; raise SkitError if another process is.

    Does nothing if this process has the lock already.
    """
    path = folder.resolve()
    if path in _locks:
        return
    # Runs are locked in one thread and may be released in another.
    lock = FileLock(path / FILE, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise SkitError(f"{folder} is being written by another skit: wait until it has ended, then --resume") from error
    except OSError as error:
        raise SkitError(f"cannot write in {folder}: {error.strerror}; {RESUME_HINT}") from error
    _locks[path] = lock


def release(folder: Path) -> None:
    """Let other processes write to `folder` again, and remove the lock file; do nothing if it is not locked here."""
    lock = _locks.pop(folder.resolve(), None)
    if lock is None:
        return
    # The file goes before the lock does: a process that opens it in between sees that it was removed, and tries again.
    # Some systems do not remove a file that is open.
    with suppress(OSError):
        (folder / FILE).unlink()
    lock.release()
