"""Files that grow by a line as work is done, and folders with one writer: what is finished survives
whatever ends it.

A folder's lock ends with the writer's process. Errors name the damaged file and line.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from filelock import FileLock, Timeout

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file
from specbench_kit.runs.folder import encode

T = TypeVar("T")
RESUME_HINT = (
    "finished requests are kept; make room or fix its permissions, then go on with --resume"
)
"""The advice for a folder that cannot be written."""
_LOCK = ".lock"
_locks: dict[Path, FileLock] = {}
"""The locks that this process has, by folder."""


class LineFile:
    """A file of one record a line, to which one process appends.

    Reading changes nothing and skips a last line that a kill cut short; the next append removes it.
    """

    def __init__(self, path: Path, hint: str = RESUME_HINT) -> None:
        self.path = path
        self._hint = hint

    def lines(self) -> list[bytes]:
        """Return the lines that end in a newline; a missing file has none."""
        with reported(f"cannot read {self.path}", "fix its permissions"):
            content = self.path.read_bytes() if self.path.exists() else b""
        return content.split(b"\n")[:-1]

    def records(
        self, read: Callable[[bytes], T], expected: str, advice: str
    ) -> Iterator[tuple[int, T]]:
        """Yield every line's number and record; an error says what was expected and what to do.

        `read` raises ValueError for a line that holds no record.
        """
        for number, line in enumerate(self.lines(), 1):
            try:
                record = read(line)
            except ValueError as error:
                raise SkitError(
                    f"{self.path}:{number}: not {expected} ({error}): {advice}"
                ) from error
            yield number, record

    def append(self, line: str) -> None:
        """Add a line, which comes without its newline; the file is made if it is missing."""
        with self._writing(), self.path.open("ab+") as file:
            _cut_partial_line(file)
            file.write(encode(line + "\n"))

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write all lines anew, whole or not at all."""
        with self._writing():
            replace_file(self.path, b"".join(line + b"\n" for line in lines))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with reported(f"cannot write {self.path.name} in {self.path.parent}", self._hint):
            yield


def _cut_partial_line(file: BinaryIO) -> None:
    """Remove what a kill in the middle of a write left after the last newline, and go to the end of
    the file.
    """
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


@contextmanager
def reported(problem: str, hint: str) -> Iterator[None]:
    """Turn an OSError into a SkitError of one line: the problem, its cause and what to do."""
    try:
        yield
    except OSError as error:
        raise SkitError(f"{problem}: {error.strerror or error}; {hint}") from error


def lock(folder: Path) -> None:
    """Make this process the only writer of `folder`; raise SkitError if another process is.

    Does nothing if this process has the lock already.
    """
    path = folder.resolve()
    if path in _locks:
        return
    # Runs are locked in one thread and may be released in another.
    file = FileLock(path / _LOCK, blocking=False, thread_local=False)
    try:
        file.acquire()
    except Timeout as error:
        raise SkitError(
            f"{folder} is being written by another skit: wait until it has ended, then --resume"
        ) from error
    except OSError as error:
        raise SkitError(f"cannot write in {folder}: {error.strerror}; {RESUME_HINT}") from error
    _locks[path] = file


def unlock(folder: Path) -> None:
    """Let other processes write to `folder` again, and remove the lock file; do nothing if it is
    not locked here.
    """
    file = _locks.pop(folder.resolve(), None)
    if file is None:
        return
    # The file goes before the lock does: a process that opens it in between sees that it was
    # removed, and tries again. Some systems do not remove a file that is open.
    with suppress(OSError):
        (folder / _LOCK).unlink()
    file.release()
