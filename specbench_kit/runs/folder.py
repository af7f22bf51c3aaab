"""Folders of runs: their names, and files that are written whole or not at all."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file

KEY_DIGITS = 8
"""Digits of a run's hash that its folder's name holds."""


def content_hash(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_key(defining: Mapping[str, object]) -> str:
    """Return the start of the hash of what defines a run, as its folder's name holds it."""
    return content_hash(defining)[:KEY_DIGITS]


def unused_folder(out: Path, command: str, subject: str, defining: Mapping[str, object]) -> Path:
    """Return the path of a new folder below `out`, `<utc-time>-<command>-<subject>-<hash>`; it is not made yet."""
    candidates = folder_candidates(out, command, slug(subject), run_key(defining))
    return next(path for path in candidates if not path.exists())


def folder_candidates(out: Path, *name_parts: str) -> Iterator[Path]:
    """Yield paths below `out` whose names begin with the time of day; later ones are numbered from 2 on."""
    name = "-".join((datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), *name_parts))
    yield out / name
    yield from (out / f"{name}-{number}" for number in count(2))


def unfinished_folder(out: Path, command: str, key: str, holding: str) -> Path:
    """Return the newest folder of a command's runs with this key that holds a file and no summary yet.

    Raise SkitError if there is none.
    """
    folders = sorted(file.parent for file in out.glob(f"*-{command}-*-{key}*/{holding}"))
    unfinished = [folder for folder in folders if not (folder / "summary.json").exists()]
    if not unfinished:
        raise SkitError(f"{out} holds no unfinished run with these settings: start one without --resume")
    return unfinished[-1]


def slug(text: str) -> str:
    """Return the text in lower case with everything but letters, digits and dots replaced by hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def to_json(content: Mapping[str, object] | Struct) -> str:
    """Return indented JSON; a number that is not finite raises ValueError."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=to_builtins) + "\n"


def encode(text: str) -> bytes:
    """Return the text in UTF-8; half of a surrogate pair, which a prompt file may hold, becomes its JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made if it is missing; raise SkitError if it cannot be."""
    try:
        replace_file(path, encode(text))
    except OSError as error:
        raise SkitError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from error
