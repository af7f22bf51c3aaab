"""Kinds of study: the types of what was run and of what was found, and the pages that are made of
these two alone.

A study's folder holds both, as `run.json` and `summary.json`: whoever has them makes every page
again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_readable
from specbench_kit.core.plain_text import CsvRow, csv_text, one_line_texts
from specbench_kit.core.typed_json import JsonObject, convert, with_unknown
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.page_files import PLOTS, PageFiles
from specbench_kit.reports.writing.drawing import Picture, safe_svg
from specbench_kit.runs.directory import read_object
from specbench_kit.runs.document import RunDescription, RunFields
from specbench_kit.runs.folder import to_json, write_text

if TYPE_CHECKING:
    from rich.console import Console

RUN = "run.json"
DEFAULT_COMMAND = "bench"
"""The command whose `run.json` names none."""
VERSION = 1
"""The version of both files of every study. It rises when an older kit would misread a file."""
FORMATS = ("md", "html", "csv", "png", "svg")

D = TypeVar("D", bound=RunDescription)
R = TypeVar("R")


Tables = Mapping[str, Sequence[CsvRow]]
"""The rows of the tables that stand beside a page, by the names of their files."""


Printed = JsonObject
"""What `--json` prints of a study: the folders of its runs, its result, and what limits it."""


class Parts(Protocol):
    """Intermediate results, of which none is needed once a study is whole."""

    def remove(self) -> None:
        """Remove them."""


class StoredFiles(NamedTuple):
    """The two files of a study as they were parsed, before a type is known that they match."""

    run: JsonObject
    summary: JsonObject


class Entry(NamedTuple):
    """A study in a list of many.

    `run` is what was run, None for a result without its runs; `runs` has the description of every run. `headline` is
    what was found in one sentence, and `cautions` limit that.
    """

    run: RunDescription | None
    runs: Sequence[RunDescription]
    headline: str
    cautions: list[str]


class StudyKind(ABC, Generic[D, R]):
    """What one command studies: the types of its two files, and what pages, pictures and tables are
    made of them.
    """

    command: str
    """The name by which `run.json` says which command wrote it."""
    description: type[D]
    """The type of `run.json`."""
    result: Any
    """The type of `summary.json`, R."""
    summary: str = "summary.json"
    page: str = "report"
    """The names of the file of the result, and of the page without its suffix."""
    beside: str = ""
    """The command into whose folder this one writes; empty for one with a folder of its own."""
    file_suffix: str = ""
    """The suffix of a file that the command writes beside the folder under the same name; empty if
    there is none.
    """
    joint: bool = False
    """Whether several runs are one study, with a table of all of them. The folder of its result has
    no `run.json` then.
    """
    formats: Sequence[str] = FORMATS
    """The formats that its pages are written in."""

    @abstractmethod
    def headline(self, study: "Study[D, R]") -> str:
        """Return what was found, in one sentence."""

    @abstractmethod
    def cautions(self, study: "Study[D, R]") -> list[str]:
        """Return what limits the result, to be read before a number is quoted."""

    @abstractmethod
    def document(self, study: "Study[D, R]", figures: Sequence[Figure]) -> Document:
        """Return the page."""

    @abstractmethod
    def files(self, study: "Study[D, R]") -> Tables:
        """Return the rows of the tables that stand beside the page as CSV, by file name; the main
        one comes first.
        """

    @abstractmethod
    def print(self, console: "Console", study: "Study[D, R]") -> None:
        """Print what the command prints at its end."""

    def descriptions(self, study: "Study[D, R]") -> Sequence[D]:
        """Return what was run: one description, or that of each of several runs."""
        return [study.run]

    def pictures(self, study: "Study[D, R]") -> Iterable[Picture]:
        """Return the pictures of the page, the most important one first."""
        return ()

    def setting(self, study: "Study[D, R]") -> str:
        """Return the words below the title of every picture: what was run, and on which time."""
        return ""

    def pages(self, study: "Study[D, R]", folder: Path, formats: Sequence[str]) -> Iterable[Path]:
        """Write the page, its pictures and its tables into a folder in these formats, and yield the
        files.
        """
        return _write(study, folder, formats)

    def named_files(self, folder: Path, written: Sequence[Path]) -> Sequence[Path]:
        """Return those of the files in a folder that a command names at its end: the last page."""
        pages = [
            path for path in written if path.stem == self.page and path.suffix in (".html", ".md")
        ]
        return (pages or written)[-1:]

    def printed(self, study: "Study[D, R]") -> Printed:
        """Return what `--json` prints of a study."""
        return {"run_dirs": [str(study.folder)], "summary": [self.content(study.result)]}

    def found(self, run: D, content: object, folder: Path) -> R:
        """Return the result that a file's content holds, with what other files of the folder add to
        it.
        """
        result: R = convert(self.result, content)
        return result

    def content(self, result: R) -> object:
        """Return what the file of the result holds."""
        return to_builtins(result)

    def upgraded(self, files: StoredFiles) -> StoredFiles:
        """Return what two files that no version names, as 0.2 wrote them, hold in the present form.

        What they lack need not be added where it may be unknown.
        """
        return files

    def find(self, folder: Path) -> Path | None:
        """Return the file of the result in a folder, compressed or not; None if there is none."""
        names = (self.summary, f"{self.summary}.xz")
        return next((path for name in names if (path := folder / name).is_file()), None)

    def read(self, folder: Path) -> "Study[D, R]":
        """Return the study in a folder; SkitError if it is not whole, not of this kind, or of a
        newer version.
        """
        return read(self, folder)

    def entry(self, folder: Path) -> Entry:
        """Return the study in a folder as a list of many shows it."""
        study = self.read(folder)
        with reading(study):
            return Entry(study.run, study.runs, study.headline, self.cautions(study))


@dataclass(frozen=True, slots=True)
class Study(Generic[D, R]):
    """A study: its kind, its folder, what was run, and what was found."""

    kind: StudyKind[D, R]
    folder: Path
    run: D
    result: R

    @property
    def headline(self) -> str:
        """What was found, in one sentence."""
        return self.kind.headline(self)

    @property
    def runs(self) -> Sequence[D]:
        """What was run, for each run by itself."""
        return self.kind.descriptions(self)

    def pages(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write the page, its pictures and its tables into a folder in these formats, and return
        the files.
        """
        return list(self.kind.pages(self, folder, formats))

    def save(self) -> None:
        """Write the pages and the result into the study's folder."""
        self.pages(self.folder)
        # Last, because it marks a folder as whole.
        write_text(self.folder / self.kind.summary, to_json(self.kind.content(self.result)))


def finish(
    kind: StudyKind[D, R],
    folder: Path,
    run: RunFields | JsonObject,
    result: R,
    parts: Parts | None = None,
) -> Study[D, R]:
    """Write all files of a study, and drop the intermediate results."""
    described = {"schema_version": VERSION, **run}
    study = Study(kind, folder, kind.description.read(described), result)
    write_text(folder / RUN, to_json(described))
    study.save()
    if parts is not None:
        parts.remove()
    return study


@contextmanager
def reading(study: Study[Any, Any]) -> Iterator[None]:
    """Turn what goes wrong with a study that was read into one line: fields of the right types may
    not belong together.

    Somebody may have written its files by hand, or changed them.
    """
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        LookupError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise SkitError(
            f"{study.folder}: no page can be made of what {study.kind.summary} and run.json say together ({what}): was "
            "one of them changed?"
        ) from error


def command_of(folder: Path) -> str | None:
    """Return the command whose run a folder holds; None for any other folder."""
    path = folder / RUN
    if not path.is_file():
        return None
    command = _object(path).get("command")
    return command if isinstance(command, str) else DEFAULT_COMMAND


def read(kind: StudyKind[D, R], folder: Path) -> Study[D, R]:
    """Return the study in a folder; SkitError if it is not whole, not of this kind, or of a newer
    version.
    """
    path = kind.find(folder)
    if path is None:
        raise SkitError(
            f"{folder} has no {kind.summary}: its run of skit {kind.command} is unfinished"
        )
    file = folder / RUN
    run, summary = _object(file), _object(path)
    version = run.get("schema_version", 0)
    require_readable(file, version, VERSION)
    try:
        if version == 0:
            run, summary = kind.upgraded(StoredFiles(run, summary))
            summary = with_unknown(kind.result, summary)
        description = kind.description.read(run)
        file = path
        return Study(kind, folder, description, kind.found(description, summary, folder))
    except (ValueError, KeyError, TypeError) as error:
        raise SkitError(
            f"{file}: {error}: it is not what skit {kind.command} of this version writes"
        ) from error


def _object(path: Path) -> JsonObject:
    """Return the object that a JSON file holds, with texts of one line."""
    content: JsonObject = one_line_texts(read_object(path))
    return content


def _write(study: Study[Any, Any], folder: Path, formats: Sequence[str]) -> Iterable[Path]:
    files = PageFiles(folder, formats, study.kind.setting(study))
    try:
        yield from _write_files(study, files, formats)
    except OSError as error:
        raise SkitError(
            f"cannot write {files.folder}: {error.strerror or error}; make room or choose another folder"
        ) from error


def _write_files(
    study: Study[Any, Any], files: PageFiles, formats: Sequence[str]
) -> Iterable[Path]:
    kind = study.kind
    if files.has_pictures:
        for picture in kind.pictures(study):
            yield from files.draw(picture)
    if files.folder.resolve() != study.folder.resolve():
        for drawn_before in sorted(study.folder.glob(f"{PLOTS}/*")):
            name = f"{PLOTS}/{drawn_before.name}"
            if drawn_before.suffix[1:] in files.suffixes and not (files.folder / name).exists():
                is_svg = drawn_before.suffix == ".svg"
                yield files.write(
                    name, _safe(drawn_before) if is_svg else drawn_before.read_bytes()
                )
    if "csv" in formats:
        for name, rows in kind.files(study).items():
            yield files.write(name, csv_text(rows))
    document = kind.document(study, files.figures)
    if "md" in formats:
        yield files.write(f"{kind.page}.md", render_markdown.render(document))
    if "html" in formats:
        drawings = _other_drawings(study.folder, files.drawings) | files.drawings
        yield files.write(f"{kind.page}.html", render_html.render(document, drawings))


def _other_drawings(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Return the drawings in a study's folder besides those that are known: some are made while a
    study runs.
    """
    files = {f"{PLOTS}/{path.stem}": path for path in sorted((folder / PLOTS).glob("*.svg"))}
    return {
        name: render_html.inline_svg(_safe(path).decode(), path.stem)
        for name, path in files.items()
        if name not in known
    }


def _safe(drawing: Path) -> bytes:
    """Return a drawing that may come from elsewhere, less all that is neither shape nor text."""
    try:
        return safe_svg(drawing.read_bytes())
    except ValueError as error:
        raise SkitError(f"{drawing} is {error}: remove it") from error
