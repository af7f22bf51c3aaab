"""Folders of runs other than benchmarks: their names, and files that are written whole."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from specbench_kit.errors import SkitError

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


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made where it is missing."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}; make room or choose another place") from error
