"""Finds the draft model and the head of a target: bundled ones, and those that the user trained.

Imports nothing heavy.
"""

from pathlib import Path
from typing import Literal

from specbench_kit.core.errors import SkitError
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.catalogue import BUNDLED, BUNDLED_FOLDER, SYNTHETIC, ModelSource, locate
from specbench_kit.models.gguf import gguf_checksum
from specbench_kit.models.named import NAMED_MODELS

AUTO = "auto"
"""The name that stands for the draft model, or the head, that belongs to the target."""

Kind = Literal["draft", "head"]


def trained_folder(target: ModelSource, kind: Kind) -> Path:
    """Return the default folder of the draft model or head that is trained for a target."""
    return user_folder(f"{kind}s") / target.label.replace("/", "--")


def find_own(target: ModelSource, kind: Kind) -> ModelSource | None:
    """Return the draft model or head that belongs to a target: the user's own before a bundled one; None without."""
    bundled = bundled_folder(target)
    for folder in (trained_folder(target, kind), *([bundled / kind] if bundled else [])):
        if (folder / "config.json").is_file():
            return ModelSource(str(folder), f"{target.label.removesuffix('/target')}/{kind}", local_only=True)
    return None


def find_draft(name: str, target: ModelSource) -> ModelSource:
    """Return the source of a draft model; if the target has none of its own, `auto` is an error of one line."""
    if name != AUTO:
        return locate(name, "draft")
    if own := find_own(target, "draft"):
        return own
    if target.synthetic:
        raise SkitError(f"a synthetic target has no draft model of its own: give --draft {SYNTHETIC}:ranks=0.8+0.1")
    raise SkitError(
        f"no draft model belongs to the target '{target.label}': give --draft MODEL, train one with skit train-draft, "
        "or name methods that need none, such as suffix or prompt-lookup"
    )


def is_missing_draft(name: str, target: ModelSource) -> bool:
    """Return whether the name stands for the target's own draft model and there is none."""
    return name == AUTO and find_own(target, "draft") is None


def bundled_folder(target: ModelSource) -> Path | None:
    """Return the folder of what is bundled for a target, which may be a copy of a named model under another name."""
    if target.label == f"{BUNDLED}/target":
        return BUNDLED_FOLDER
    checksum = gguf_checksum(Path(target.location))
    for model in NAMED_MODELS.values():
        if target.label == model.name or target.location == model.hub_id or checksum == model.sha256:
            return BUNDLED_FOLDER / model.name
    return None
