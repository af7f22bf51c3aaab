"""The kinds of study by the command that makes them, as the folder of each study declares them in
its `kind.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from specbench_kit import studies
from specbench_kit.core.errors import SkitError
from specbench_kit.reports.study import Study, StudyKind, command_of, find_result, read

AnyStudy = Study[Any, Any]


@cache
def kinds() -> dict[str, StudyKind[Any, Any]]:
    """Return every kind of study by its command; a folder of studies without a `kind.py` has
    none.
    """
    found: dict[str, StudyKind[Any, Any]] = {}
    for folder in iter_modules(studies.__path__, f"{studies.__name__}."):
        name = f"{folder.name}.kind"
        if folder.ispkg and find_spec(name) is not None:
            found |= {kind.command: kind for kind in import_module(name).KINDS}
    return found


@contextmanager
def reading(study: AnyStudy) -> Iterator[None]:
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


def folder_of(path: Path) -> Path:
    """Return the folder of the study that a path names, itself or by the file that the command
    wrote beside it.

    Any other path is returned as it is.
    """
    folder = path.with_suffix("")
    if not path.is_file() or (command := command_of(folder)) is None:
        return path
    kind = kinds().get(command)
    return folder if kind and kind.file_suffix == path.suffix else path


def studies_in(path: Path) -> list[AnyStudy]:
    """Return the studies in a folder, that of its command and others beside it; none for any other
    folder.

    A file that a command wrote beside the folder stands for it. Raise SkitError if the folder's
    command is not known, or if a file is damaged.
    """
    folder = folder_of(path)
    command = command_of(folder)
    if command is None:
        return []
    known = kinds()
    if command not in known:
        raise SkitError(
            f"{folder} holds a run of skit {command}, whose page cannot be made again; that can be done for bench, "
            f"{', '.join(sorted(known))}"
        )
    beside = [
        kind for kind in known.values() if kind.beside == command and find_result(kind, folder)
    ]
    return [read(kind, folder) for kind in (known[command], *beside)]


def find_studies(paths: Sequence[Path]) -> tuple[list[AnyStudy], list[Path]]:
    """Return the studies in these folders, and the folders that hold none, which may be those of
    benchmarks' runs.

    A folder without a run of its own stands for the studies right below it, unless there are
    benchmarks among them.
    """
    found: list[AnyStudy] = []
    others = []
    for path in map(folder_of, paths):
        if path.is_file():
            raise SkitError(
                f"{path} is a file: name the folder of a run (that of a file of skit tune stands beside it, under the "
                "same name)"
            )
        below = sorted(file.parent for file in path.glob("*/run.json"))
        is_parent = (
            below
            and not (path / "run.json").exists()
            and all(command_of(folder) for folder in below)
        )
        for folder in below if is_parent else [path]:
            studies = studies_in(folder)
            found += studies
            others += [] if studies else [folder]
    return found, others
