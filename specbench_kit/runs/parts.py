"""The parts of a study on disk, each as soon as it is done, so that an interrupted study goes on
where it ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from specbench_kit import __version__
from specbench_kit.core.errors import Interrupted, SkitError, require
from specbench_kit.core.foreign_file import StatedFile
from specbench_kit.core.typed_json import Count, decode
from specbench_kit.runs.folder import Defining, unfinished_folder
from specbench_kit.runs.line_file import LineFile, lock, reported, unlock
from specbench_kit.runs.provenance import hash_file

T = TypeVar("T")
NAME = "parts.jsonl"
HINT = "make room, then go on with --resume"


class _Head(Struct, forbid_unknown_fields=True):
    """The first line of the file: what defines the study, and another version of the kit may come
    to other results.
    """

    kit: str
    defining: Defining = {}


class _Part(Struct, forbid_unknown_fields=True):
    """Any other line: the result of part number `part` of a step."""

    step: Count
    part: Count
    result: Raw


class KeptParts:
    """The parts that are done, in a file of the study's folder until the study is whole.

    The same settings ask for the same parts in the same order, so that numbers name them.
    """

    def __init__(self, folder: Path, defining: Defining | None = None) -> None:
        self.folder = folder
        self._defining = defining or {}
        self.path = folder / NAME
        self._file = LineFile(self.path, HINT)
        self._results: dict[tuple[int, int], Raw] = {}

    @classmethod
    def resumed(cls, folder: Path) -> "KeptParts":
        """Return the parts that a folder holds; raise SkitError for a file that is not whole or of
        another version.
        """
        parts = cls(folder)
        lock(folder)
        lines = parts._file.lines()
        try:
            head = decode(_Head, lines[0] if lines else b"{}")
            require(
                head.kit == __version__,
                f"{folder} was begun with version {head.kit} of the kit, and this is {__version__}: start a new run "
                "without --resume",
            )
            for line in lines[1:]:
                part = decode(_Part, line)
                parts._results[part.step, part.part] = part.result
        except ValueError as error:
            raise SkitError(f"{parts.path}: {error}; start a new run without --resume") from error
        return parts

    def begin(self) -> None:
        """Make the file, unless it is there, before the first part is done."""
        if not self.path.exists():
            with reported(f"cannot write {self.path}", HINT):
                self.folder.mkdir(parents=True, exist_ok=True)
            self._file.append(_line(_Head(__version__, dict(self._defining))))
            lock(self.folder)

    def results(self, step: int, kind: type[T]) -> dict[int, T]:
        """Return the results, which are of type `kind`, of those parts of a step that are done."""
        try:
            return {
                part: decode(kind, bytes(raw))
                for (of, part), raw in self._results.items()
                if of == step
            }
        except ValueError as error:
            raise SkitError(f"{self.path}: {error}; start a new run without --resume") from error

    def add(self, step: int, part: int, result: Any) -> None:
        """Keep the result of a part."""
        self.begin()
        self._results[step, part] = Raw(msgspec.json.encode(result))
        self._file.append(_line(_Part(step, part, self._results[step, part])))

    @contextmanager
    def kept_when_interrupted(self) -> Iterator[None]:
        """Turn an interrupt of the work inside into an error that says where it goes on, if
        anything is kept.
        """
        try:
            yield
        except KeyboardInterrupt:
            if not self.path.exists():
                raise
            kept = f"what is done is kept in {self.folder}: go on with --resume"
            raise Interrupted(f"interrupted; {kept}") from None

    def remove(self) -> None:
        """Remove the file of a study that is whole."""
        self.path.unlink(missing_ok=True)
        unlock(self.folder)


def _line(record: Struct) -> str:
    return msgspec.json.encode(record).decode()


def input_hashes(settings: Defining) -> dict[str, str]:
    """Return the hash of each file that settings name, so that no run goes on with other data than
    it began with.
    """
    hashes = {}
    for value in settings.values():
        for part in value if isinstance(value, list | tuple) else [value]:
            with suppress(OSError):  # a text too long for a file's name
                if (
                    isinstance(part, str | Path | StatedFile)
                    and (file := StatedFile.parse(str(part)).path).is_file()
                ):
                    hashes[str(part)] = hash_file(file)
    return hashes


def unfinished_parts(out: Path, command: str, defining: Defining) -> KeptParts:
    """Return the parts of the newest unfinished run of a command with these settings; SkitError if
    there is none.
    """
    return KeptParts.resumed(unfinished_folder(out, command, defining, NAME, _defining_of))


def _defining_of(folder: Path) -> Defining:
    """Return what defines the study of a folder; nothing if its file does not say."""
    try:
        return decode(_Head, (LineFile(folder / NAME).lines() or [b"{}"])[0]).defining
    except ValueError:
        return {}
