"""The model that is profiled: one with real weights, or a card's shapes with random weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import (
    BUNDLED,
    ModelSource,
    locate,
    names_pair,
    read_config,
    resolve_target,
)
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.draft_library import AUTO, find_draft
from specbench_kit.models.gguf import gguf_file
from specbench_kit.models.named import NAMED_PAIRS, Role
from specbench_kit.profilers import cards
from specbench_kit.profilers.architectures import (
    Architecture,
    architecture_of_config,
    bundled_architectures,
    read_named_architecture,
)
from specbench_kit.profilers.variants import VARIANTS, find_architecture, split_variant

if TYPE_CHECKING:
    import torch

    from specbench_kit.models.pair import LoadedModel


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to profile. `source` is set for real weights; without it there is an `architecture`
    alone.

    `architecture` is None for model types whose work does not follow from their shapes.
    """

    name: str
    architecture: Architecture | None
    source: ModelSource | None = None
    target: ModelSource | None = None
    """For a draft model, the target whose embedding it may read."""

    @property
    def is_card(self) -> bool:
        """True if a bundled card of this name has these shapes, or they are derived from one."""
        return find_architecture(self.name) == self.architecture

    def load(self, device: "torch.device", dtype: str) -> "LoadedModel":
        """Return the model in memory, with random weights if it has no source."""
        from specbench_kit.models.pair import LoadedModel, load_apart, load_model, resolve_dtype

        if self.source is not None and self.target is not None:
            return load_apart(self.source, self.target, device=str(device), dtype=dtype)
        if self.source is not None:
            return load_model(self.source, device=str(device), dtype=dtype)
        assert self.architecture is not None
        model = _with_random_weights(self.architecture, device, resolve_dtype(dtype, device))
        return LoadedModel(model, ModelSource("", self.name, local_only=True))

    def describe(self, loaded: "LoadedModel") -> ModelDescription:
        """Return the description of the loaded model for `run.json`."""
        from specbench_kit.runs.provenance import hash_model

        if self.source is not None:
            return loaded.describe(hash_model)
        return ModelDescription(
            name=self.name, parameters=loaded.shell.num_parameters(), weights="random"
        )


def _with_random_weights(
    architecture: Architecture, device: "torch.device", dtype: "torch.dtype"
) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(architecture.config(), dtype=dtype)
    return model.eval().requires_grad_(False)


def random_model(name: str, *, device: "torch.device", dtype: "torch.dtype") -> Any:
    """Return a model with random weights of the shapes that a card, a `.toml` file or a folder's
    config.json has.
    """
    from specbench_kit.models.memory import free_bytes

    architecture = require_architecture(find_subject(name, "target"))
    needed = architecture.parameters * dtype.itemsize
    if needed > (free := free_bytes(device)):
        raise SkitError(
            f"random weights of {name} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of {device} are free: "
            "choose smaller shapes, or --dtype bfloat16"
        )
    return _with_random_weights(architecture, device, dtype)


def find_subject(name: str, role: Role) -> Subject:
    """Return a model by its name, folder, file or hub id, or the one that an architecture card
    describes; with a prefix of `VARIANTS`, what is derived from that model.
    """
    if parts := split_variant(name):
        target = find_subject(parts[1], role)
        derived = VARIANTS[parts[0]].of(require_architecture(target))
        return Subject(f"{parts[0]}:{target.name}", derived)
    if cards.names_a_file(name):
        return Subject(*read_named_architecture(Path(name).expanduser()))
    name = resolve_target(name) if role == "target" else name
    has_weights = (
        name == BUNDLED or names_pair(name) or gguf_file(name) or Path(name).expanduser().is_dir()
    )
    if not has_weights:
        if card := bundled_architectures().get(name.lower()):
            return Subject(name.lower(), card)
        if "/" not in name:
            names = ", ".join(f"'{model}'" for model in (BUNDLED, *NAMED_PAIRS))
            hint = f"; or {names}, a folder, a hub id like owner/name, or a .toml file with a card of your own; "
            hint += f"each also behind {', '.join(f'{prefix}:' for prefix in VARIANTS)}"
            raise cards.unknown_name("architecture", name, bundled_architectures(), hint)
    return _subject_of(locate(name, role))


def find_draft_subject(name: str, target: Subject) -> Subject:
    """Return the draft model of that name; `auto` is the one that belongs to the target, and a
    prefix of `VARIANTS` alone what is derived from the target.
    """
    if variant := VARIANTS.get(name.lower()):
        shapes = variant.of(require_architecture(target))
        return Subject(f"{name.lower()}:{target.name}", shapes)
    if name == AUTO and target.source is None:
        raise SkitError(f"no draft model belongs to the architecture '{target.name}': give --draft")
    if name == AUTO and target.source is not None:
        return replace(_subject_of(find_draft(name, target.source)), target=target.source)
    return replace(find_subject(name, "draft"), target=target.source)


def _subject_of(source: ModelSource) -> Subject:
    return Subject(source.label, architecture_of_config(read_config(source)), source)


def require_architecture(subject: Subject) -> Architecture:
    """Return the shapes of a model; raise SkitError if they are not known, since nothing can be
    derived then.
    """
    if subject.architecture is None:
        raise SkitError(
            f"no profile of {subject.name} can be derived: the work of its model type is not known; "
            "measure it on the device, or describe it by an architecture card"
        )
    return subject.architecture
