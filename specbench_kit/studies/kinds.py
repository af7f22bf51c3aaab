"""The kinds of study by the command that makes them, as the folder of each study declares them in
its `kind.py`.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from specbench_kit import studies
from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import modules_in_folders
from specbench_kit.reports.sections import machine
from specbench_kit.reports.study import Study, StudyKind, command_of

AnyStudy = Study[Any, Any]


@cache
def kinds() -> dict[str, StudyKind[Any, Any]]:
    """Return every kind of study by its command; a folder of studies without a `kind.py` has
    none.
    """
    found: dict[str, StudyKind[Any, Any]] = {}
    for name in modules_in_folders(studies.__name__, "kind"):
        found |= {kind.command: kind for kind in import_module(name).KINDS}
    return found


def warnings(study: AnyStudy) -> list[str]:
    """Return what limits the result of a study, to be read before a number is quoted; that of the
    machine comes first.
    """
    return list(dict.fromkeys([*machine.warnings(*study.runs), *study.kind.cautions(study)]))


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


def kind_in(folder: Path) -> StudyKind[Any, Any] | None:
    """Return the kind of the study in a folder; None for a folder that holds none.

    Raise SkitError if the command that wrote the folder is not known.
    """
    command = command_of(folder)
    known = kinds()
    if command is None:
        # The result of several runs lies in a folder of its own, where no command ran.
        joint = (kind for kind in known.values() if kind.joint and kind.find(folder))
        return next(joint, None)
    if command not in known:
        raise SkitError(
            f"{folder} holds a run of skit {command}, whose page cannot be made again; that can be done for "
            f"{', '.join(sorted(known))}"
        )
    return known[command]


def studies_in(path: Path) -> list[AnyStudy]:
    """Return the studies in a folder, that of its command and others beside it; none for any other
    folder.

    A file that a command wrote beside the folder stands for it. Raise SkitError if the folder's
    command is not known, or if a file is damaged.
    """
    folder = folder_of(path)
    kind = kind_in(folder)
    if kind is None:
        return []
    beside = [
        other for other in kinds().values() if other.beside == kind.command and other.find(folder)
    ]
    return [one.read(folder) for one in (kind, *beside)]


def find_studies(paths: Sequence[Path]) -> tuple[list[AnyStudy], list[Path]]:
    """Return the studies in these folders, and the folders of runs that share a table, which may
    lie below them.

    A folder without a run of its own stands for the studies right below it, unless there are runs
    that share a table among them.
    """
    found: list[AnyStudy] = []
    sharing = []
    for path in map(folder_of, paths):
        if path.is_file():
            raise SkitError(
                f"{path} is a file: name the folder of a run (that of a file of skit tune stands beside it, under the "
                "same name)"
            )
        below = sorted(file.parent for file in path.glob("*/run.json"))
        is_parent = (
            below and not (path / "run.json").exists() and not any(map(_shares_a_table, below))
        )
        for folder in below if is_parent else [path]:
            if _shares_a_table(folder) or not (studies := studies_in(folder)):
                sharing.append(folder)
            else:
                found += studies
    return found, sharing


def _shares_a_table(folder: Path) -> bool:
    """Return whether a folder holds a run that shares a table with others, or the result of such
    runs.
    """
    command = command_of(folder)
    kind = kind_in(folder) if command is None else kinds().get(command)
    return kind is not None and kind.joint
