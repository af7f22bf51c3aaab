"""Finds EAGLE heads: the bundled ones and those that the user trained. Imports nothing heavy."""

import json
from pathlib import Path
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.draft_library import AUTO, find_own, trained_folder

HEAD = "head:"
"""The prefix that distinguishes heads from models among the names of draft models."""
RECORD = "training.json"
"""The file that records what a head was trained on; heads of other origin have none."""


def named(path: str) -> str:
    """Return the name, among draft models, of the head in a folder or of the target's own (`auto`)."""
    return HEAD + path


def folder_for(target: ModelSource) -> Path:
    """Return the default folder of the head that is trained for a target."""
    return trained_folder(target, "head")


def find(name: str, target: ModelSource) -> ModelSource:
    """Return the source of a head; one that does not exist is an error that says how to get it."""
    path = name.removeprefix(HEAD)
    if path != AUTO:
        folder = Path(path).expanduser()
        if not (folder / "config.json").is_file():
            raise SkitError(f"there is no head in '{path}': give a folder with config.json")
        return ModelSource(str(folder), folder.resolve().name, local_only=True)
    if own := find_own(target, "head"):
        return own
    raise SkitError(
        f"no head was trained for the target '{target.label}': run skit train-head with the same --target, or give "
        "the drafter's path=FOLDER"
    )


def is_missing_head(name: str, target: ModelSource) -> bool:
    """Return whether the name is that of a head that does not exist."""
    try:
        if name.startswith(HEAD):
            find(name, target)
    except SkitError:
        return True
    return False


class TrainingPrompts(NamedTuple):
    """Fingerprints of the prompts that a head was trained on, and the part of their dataset that they are."""

    prompts: frozenset[str] = frozenset()
    part: str | None = None


def training_prompts(folder: Path) -> TrainingPrompts:
    """Read the prompts that a head was trained on; empty for a head without a record."""
    file = folder / RECORD
    if not file.is_file():
        return TrainingPrompts()
    try:
        record = json.loads(file.read_text())
        prompts, dataset = record.get("prompts") or [], record.get("dataset") or {}
        return TrainingPrompts(frozenset(prompts), dataset.get("part"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SkitError(f"cannot read what the head was trained on in '{file}' ({error}): train it again") from error
