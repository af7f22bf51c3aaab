"""Which feature heads there are: bundled with the kit, and those that the user trained. Imports nothing heavy."""

import json
from pathlib import Path
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.catalogue import BUNDLED, ModelSource

AUTO = "auto"
HEAD = "head:"
"""What tells heads from models among the names of what drafts."""
BUNDLED_HEAD = Path(__file__).parent / "bundled" / "head"
RECORD = "training.json"
"""What a head was trained on, beside it; heads of other origin have none."""


def named(path: str) -> str:
    """What the head in a folder, or the target's own, is called among models."""
    return HEAD + path


def folder_for(target: ModelSource) -> Path:
    """Where the head that was trained for a target goes unless told otherwise."""
    return user_folder("heads") / target.label.replace("/", "--")


def find(name: str, target: ModelSource) -> ModelSource:
    """Where a head lies; one that is not there is an error that says how to get it."""
    path = name.removeprefix(HEAD)
    if path != AUTO:
        return _checked(Path(path).expanduser(), f"there is no head in '{path}': give a folder with config.json")
    own = folder_for(target)
    if (own / "config.json").is_file():
        return _checked(own, "")
    if target.label == f"{BUNDLED}/target":
        return ModelSource(str(BUNDLED_HEAD), f"{BUNDLED}/head", local_only=True)
    raise SkitError(
        f"no head was trained for the target '{target.label}': run skit train-head with the same --target, or give "
        "the drafter's path=FOLDER"
    )


def lacks(name: str, target: ModelSource) -> bool:
    """Whether what is called so is a head that is not there."""
    try:
        if name.startswith(HEAD):
            find(name, target)
    except SkitError:
        return True
    return False


class Learned(NamedTuple):
    """Fingerprints of the prompts that a head learned from, and which part of their dataset they are."""

    prompts: frozenset[str] = frozenset()
    part: str | None = None


def learned_from(folder: Path) -> Learned:
    """What the record of a head's training says; nothing where there is none."""
    file = folder / RECORD
    if not file.is_file():
        return Learned()
    try:
        found = json.loads(file.read_text())
        prompts, dataset = found.get("prompts") or [], found.get("dataset") or {}
        return Learned(frozenset(prompts), dataset.get("part"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SkitError(f"cannot read what the head was trained on in '{file}' ({error}): train it again") from error


def _checked(folder: Path, missing: str) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise SkitError(missing)
    return ModelSource(str(folder), folder.resolve().name, local_only=True)
