"""Finds the draft model and the head of a target: the user's own, bundled ones, and the mates in
named pairs.

Imports nothing heavy.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.catalogue import (
    BUNDLED,
    BUNDLED_FOLDER,
    SYNTHETIC,
    ModelSource,
    find_named,
    locate,
    names_pair,
)
from specbench_kit.models.gguf import gguf_checksum
from specbench_kit.models.named import NAMED_PAIRS, NamedPair, fetched_folder, size_text

AUTO = "auto"
"""The name that stands for the draft model, or the head, that belongs to the target."""

Kind = Literal["draft", "head", "medusa-head"]


def trained_folder(target: ModelSource, kind: Kind) -> Path:
    """Return the default folder of the draft model or head that is trained for a target."""
    return user_folder(f"{kind}s") / target.label.replace("/", "--")


def find_own(target: ModelSource, kind: Kind) -> ModelSource | None:
    """Return the draft model or head that belongs to a target; None without.

    The user's own comes before a bundled one, and that before the draft model of a named pair.
    """
    bundled = bundled_folder(target)
    for folder in (trained_folder(target, kind), *([bundled / kind] if bundled else [])):
        if (folder / "config.json").is_file():
            return ModelSource(
                str(folder), f"{target.label.removesuffix('/target')}/{kind}", local_only=True
            )
    pair = named_pair(target)
    return find_named(pair.draft) if pair and pair.draft and kind == "draft" else None


def find_draft(name: str, target: ModelSource) -> ModelSource:
    """Return the source of a draft model; if the target has none of its own, `auto` is an error of
    one line.
    """
    if name != AUTO:
        return locate(name, "draft")
    if own := find_own(target, "draft"):
        return own
    if target.synthetic:
        raise SkitError(
            f"a synthetic target has no draft model of its own: give --draft {SYNTHETIC}:ranks=0.8+0.1"
        )
    if (pair := named_pair(target)) and pair.draft:
        raise SkitError(
            f"the draft model of '{target.label}', {pair.draft.title}, is not here: run `skit fetch {pair.name}` "
            f"({size_text(pair.draft.size_bytes)}), or give --draft MODEL"
        )
    raise SkitError(
        f"no draft model belongs to the target '{target.label}': give --draft MODEL, train one with skit train-draft, "
        "or name methods that need none, such as suffix or prompt-lookup"
    )


def is_missing_draft(name: str, target: ModelSource) -> bool:
    """Return whether the name stands for the target's own draft model and there is none."""
    return name == AUTO and find_own(target, "draft") is None


def bundled_folder(target: ModelSource) -> Path | None:
    """Return the folder of what is bundled for a target, which may be a copy of a named model under
    another name.
    """
    if target.label == f"{BUNDLED}/target":
        return BUNDLED_FOLDER
    pair = named_pair(target)
    return BUNDLED_FOLDER / pair.name if pair else None


def bundled_for(name: str) -> Path | None:
    """Return the folder of what is bundled for the target of that name, whose weights need not be
    here.
    """
    return BUNDLED_FOLDER / name if names_pair(name) else bundled_folder(locate(name, "target"))


def named_pair(target: ModelSource) -> NamedPair | None:
    """Return the pair whose target this is, by its content or its repository, under whatever name;
    None for others.
    """
    folder = Path(target.location)
    checksum = gguf_checksum(folder)
    for pair in NAMED_PAIRS.values():
        model = pair.target
        is_same_file = checksum is not None and checksum == model.sha256
        if is_same_file or target.location == model.repository or folder == fetched_folder(model):
            return pair
    return None


HEAD = "head:"
"""The prefix that distinguishes heads from models among the names of draft models."""
OWN_MEDUSA = "auto:medusa"
"""The name that stands for the Medusa heads that belong to the target."""
RECORD = "training.json"
"""The file that records what a head was trained on; heads of other origin have none."""


def named(path: str) -> str:
    """Return the name, among draft models, of the head in a folder or of the target's own
    (`auto`).
    """
    return HEAD + path


def find(name: str, target: ModelSource) -> ModelSource:
    """Return the source of a head; one that does not exist is an error that says how to get it."""
    path = name.removeprefix(HEAD)
    if path not in (AUTO, OWN_MEDUSA):
        folder = Path(path).expanduser()
        if not (folder / "config.json").is_file():
            raise SkitError(f"there is no head in '{path}': give a folder with config.json")
        return ModelSource(str(folder), folder.resolve().name, local_only=True)
    medusa = path == OWN_MEDUSA
    if own := find_own(target, "medusa-head" if medusa else "head"):
        return own
    raise SkitError(
        f"no {'Medusa heads were' if medusa else 'head was'} trained for the target '{target.label}': run skit "
        f"train-head{' --kind medusa' if medusa else ''} with the same --target, or give the drafter's path=FOLDER"
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
    """Fingerprints of the prompts that a head was trained on, and the part of their dataset that
    they are.
    """

    prompts: frozenset[str] = frozenset()
    part: str | None = None


def training_prompts(folder: Path) -> TrainingPrompts:
    """Read the prompts that a head was trained on; empty for a head without a record."""
    file = folder / RECORD
    if not file.is_file():
        return TrainingPrompts()
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        prompts = record.get("prompts") or []
        dataset = record.get("dataset") or {}
        return TrainingPrompts(frozenset(prompts), dataset.get("part"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SkitError(
            f"cannot read what the head was trained on in '{file}' ({error}): train it again"
        ) from error
