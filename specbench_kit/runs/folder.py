"""Folders of runs other than benchmarks: their names, and files that are written whole."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError

KEY_DIGITS = 8


def run_key(defining: Mapping[str, Any]) -> str:
    """Hash of what defines a run."""
    return hashlib.sha256(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def unused_folder(out: Path, command: str, subject: str, defining: Mapping[str, Any]) -> Path:
    """`<out>/<utc-time>-<command>-<subject>-<hash of what defines the run>`, which does not exist yet."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{time}-{command}-{slug(subject)}-{run_key(defining)}"
    candidates = (out / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def slug(text: str) -> str:
    """The text as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def to_json(content: Mapping[str, Any]) -> str:
    """JSON as run folders hold it; a number that is not finite is a ValueError."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def replace_file(path: Path, content: bytes) -> None:
    """Write beside the file and rename, so that no reader ever meets half of it; its folder is made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made where it is missing."""
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}; make room or choose another place") from error
