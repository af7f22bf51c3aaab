"""Folders of runs: their names, and files that are written whole or not at all."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TypeGuard

from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file
from specbench_kit.core.typed_json import decode, flat, shown
from specbench_kit.runs.provenance import shareable

RUN = "run.json"
"""The file that describes a run."""
KEY_DIGITS = 8
"""Digits of a run's hash that its folder's name holds."""


Defining = Mapping[str, object]
"""What defines a run: its settings and the hashes of its inputs by name. It is hashed and compared,
and no value of it is read, so that each may be anything that JSON holds.
"""


class _Started(Struct):
    """The command line of a run, as its `run.json` holds it."""

    argv: list[str] = []


def content_hash(content: Defining) -> str:
    """Return the SHA-256 of what defines a run, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_key(defining: Defining) -> str:
    """Return the start of the hash of what defines a run, as its folder's name holds it."""
    return content_hash(defining)[:KEY_DIGITS]


def unused_folder(out: Path, command: str, subject: str, defining: Defining) -> Path:
    """Return the path of a new folder below `out`, `<utc-time>-<command>-<subject>-<hash>`; it is
    not made yet.
    """
    candidates = folder_candidates(out, command, slug(subject), run_key(defining))
    return next(path for path in candidates if not path.exists())


def require_writable(folder: Path) -> None:
    """Raise SkitError if no file can be written into a folder, which need not exist yet.

    A command asks before its work, which would be lost.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise SkitError(f"cannot write into {folder}: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK):
        raise SkitError(f"cannot write into {folder}: permission denied; choose another folder")


def folder_candidates(out: Path, *name_parts: str) -> Iterator[Path]:
    """Yield paths below `out` whose names begin with the time of day; later ones are numbered from
    2 on.
    """
    name = "-".join((datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), *name_parts))
    yield out / name
    yield from (out / f"{name}-{number}" for number in count(2))


Unfinished = Mapping[Path, Defining]
"""What defines each unfinished run, by its folder."""


def _has_summary(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def unfinished_folder(
    out: Path,
    command: str,
    defining: Defining,
    holding: str,
    read: Callable[[Path], Defining],
    is_whole: Callable[[Path], bool] = _has_summary,
) -> Path:
    """Return the newest folder of a command's runs of this kind that holds a file and is not whole.

    Raise SkitError if there is none; `read` returns what defines the run of a folder, nothing if
    that is not known.
    """
    folders = sorted(file.parent for file in out.glob(f"*-{command}-*/{holding}"))
    key = run_key(defining)
    matching = [folder for folder in folders if f"-{key}" in folder.name and not is_whole(folder)]
    if not matching:
        others = {
            folder: known for folder in folders if (known := read(folder)) and not is_whole(folder)
        }
        # The file that a run keeps while it is unfinished may be gone by its end, which its
        # `run.json` is not.
        same = sorted(file.parent for file in out.glob(f"*-{command}-*-{key}*/{RUN}"))
        raise nothing_to_resume(out, defining, others, next(filter(is_whole, reversed(same)), None))
    return matching[-1]


def require_unfinished(
    out: Path, command: str, argv: Sequence[str], is_whole: Callable[[Path], bool] = _has_summary
) -> None:
    """Raise SkitError if no run of a command below `out` is unfinished, before anything is loaded.

    `argv` is the command line; a finished run of the same one is named.
    """
    folders = sorted({file.parent for file in out.glob(f"*-{command}-*/*.json*")}, reverse=True)
    if all(map(is_whole, folders)):
        raise nothing_to_resume(out, {}, {}, newest_of_command(folders, argv))


def newest_of_command(folders: Iterable[Path], argv: Sequence[str]) -> Path | None:
    """Return the first of some folders whose run was started by a command line, but for what only
    --resume needs.
    """
    wanted = [word for word in shareable(argv) if word not in ("--resume", "--force")]
    for folder in folders:
        with suppress(OSError, ValueError):
            recorded = decode(_Started, (folder / RUN).read_bytes()).argv
            if [word for word in recorded if word not in ("--resume", "--force")] == wanted:
                return folder
    return None


NAMED_DIFFERENCES = 3


def nothing_to_resume(
    out: Path, wanted: Defining, unfinished: Unfinished, finished: Path | None = None
) -> SkitError:
    """Return the error that no unfinished run has the wanted settings.

    It names `finished`, the run that has them and is whole, or else the nearest unfinished one and
    what differs there.
    """
    none = f"{out} holds no unfinished run with these settings"
    if finished is not None:
        return SkitError(
            f"{none}; this run is finished: {finished}; start another one without --resume"
        )
    differences = {
        folder: _differences(wanted, defining)
        for folder, defining in unfinished.items()
        if defining
    }
    if not differences:
        return SkitError(f"{none}: start one without --resume")
    nearest = min(sorted(differences, reverse=True), key=lambda folder: len(differences[folder]))
    parts = differences[nearest]
    more = f" and {len(parts) - NAMED_DIFFERENCES} more" if len(parts) > NAMED_DIFFERENCES else ""
    return SkitError(
        f"{none}; nearest is {nearest.name}, with {'; '.join(parts[:NAMED_DIFFERENCES])}{more}: give its settings, or "
        "start a run without --resume"
    )


def _differences(wanted: Defining, defining: Defining) -> list[str]:
    """Return in which settings another run differs; other files come last."""
    ours, theirs = flat(json.loads(json.dumps(wanted))), flat(defining)
    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    if "config.limit" in names:  # other prompts are its consequence
        names = [name for name in names if name.partition(".")[0] != "dataset"]
    names.sort(key=lambda name: not name.startswith(GIVEN))
    hashes = [
        name
        for name in names
        if any(map(HASH.fullmatch, map(str, (ours.get(name), theirs.get(name)))))
    ]
    readable = [name for name in names if name not in hashes]
    said = [
        f"{name} {before}, not {now}"
        for name in readable
        for before, now in _differing(theirs.get(name), ours.get(name))
    ]
    return said + [f"other content of {name}" for name in hashes]


GIVEN = ("method", "options.", "config.")
"""What names of settings that a user gives begin with; they come before what follows from them."""
HASH = re.compile(r"[0-9a-f]{32,}")


def _differing(before: object, now: object) -> list[tuple[str, str]]:
    """Return both values as text, of lists of rows those rows alone that differ."""
    if _is_rows(before) and _is_rows(now) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return [
            (" ".join(map(str, then)), " ".join(map(str, row)))
            for then, row in pairs
            if then != row
        ]
    return [(_shown(before), _shown(now))]


def _is_rows(value: object) -> TypeGuard[list[list[object]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _shown(value: object) -> str:
    return "unset" if value is None else shown(value)


def slug(text: str) -> str:
    """Return the text in lower case with everything but letters, digits and dots replaced by
    hyphens.
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def to_json(content: object) -> str:
    """Return indented JSON; a number that is not finite raises ValueError."""
    return (
        json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=to_builtins)
        + "\n"
    )


def encode(text: str) -> bytes:
    """Return the text in UTF-8; half of a surrogate pair, which a prompt file may hold, becomes its
    JSON escape.
    """
    return text.encode("utf-8", "backslashreplace")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made if it is missing; raise SkitError
    if it cannot be.
    """
    try:
        replace_file(path, encode(text))
    except OSError as error:
        raise SkitError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from error
