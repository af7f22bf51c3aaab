"""A pair whose target is on a server: local draft models and heads, and a description of the
target.

Heads draft from the hidden states that verdicts bring.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.draft_library import HEAD, find, find_draft, is_missing_draft
from specbench_kit.models.heads.files import (
    TargetEnds,
    TargetSizes,
    load_head_for,
    load_medusa,
    on_device,
    read_embedding,
    read_output,
)
from specbench_kit.models.heads.medusa import is_medusa
from specbench_kit.models.pair import (
    AUTO,
    LoadedModel,
    Pair,
    load_apart,
    load_draft_tokenizer,
    resolve_device,
    resolve_dtype,
)
from specbench_kit.models.vocabulary_map import unshared
from specbench_kit.runs.provenance import hash_model


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A server's description of its target; `parameters` is None if the server does not state
    it.
    """

    name: str
    hash: str
    dtype: str
    vocabulary: int
    context: int
    eos_ids: tuple[int, ...]
    bitwise: bool
    """True if the target computes a request bit for bit the same in every batch."""
    parameters: int | None = None
    layers: int = 0
    """Layers of the target whose hidden states verdicts can bring; 0 if the server sends none."""
    hidden_size: int = 0


class ServedTarget(LoadedModel):
    """A target on a server, with those properties of a loaded model that a run records."""

    target: TargetDescription

    def __init__(self, target: TargetDescription) -> None:
        model = SimpleNamespace(
            device=torch.device("cpu"),  # a clock that waits for the CPU waits for nothing
            dtype=target.dtype,
            generation_config=SimpleNamespace(eos_token_id=list(target.eos_ids), to_diff_dict=dict),
        )
        super().__init__(model, ModelSource(target.name, target.name, local_only=True))
        object.__setattr__(self, "target", target)  # the base class is frozen

    @property
    def text_config(self) -> SimpleNamespace:
        return SimpleNamespace(vocab_size=self.target.vocabulary)

    @property
    def context(self) -> int:
        return self.target.context

    def describe(self, hash_folder: Callable[[Path], str]) -> ModelDescription:
        return ModelDescription(
            name=self.target.name, hash=self.target.hash, parameters=self.target.parameters
        )


@dataclass(frozen=True, slots=True)
class ServedPair(Pair):
    """A pair of a served target and `local_models`, the only models that are loaded here."""

    local_models: dict[str, LoadedModel] = field(default_factory=dict)
    refused_heads: dict[str, SkitError] = field(default_factory=dict)

    def require_head(self, name: str) -> None:
        """Raise SkitError if a head could not be loaded."""
        if name in self.refused_heads:
            raise self.refused_heads[name]

    @property
    def loaded(self) -> dict[str, LoadedModel]:
        return self.local_models

    @property
    def vocabulary(self) -> int:
        """The number of token ids that all models have."""
        return min(
            int(model.text_config.vocab_size)
            for model in (self.target, *self.local_models.values())
        )


@dataclass(frozen=True, slots=True)
class ServedHeads:
    """The heads that were loaded for a target on a server, by name, and the reasons why others were
    not.
    """

    loaded: dict[str, LoadedModel] = field(default_factory=dict)
    refused: dict[str, SkitError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftModels:
    """The local draft models, and the tokenizer that the target must share."""

    tokenizer: Any
    models: dict[str, LoadedModel]
    masked: tuple[int, ...]
    """Added tokens that only some of the tokenizers have, and that are never drafted."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the tokenizer and all draft models have."""
        return min(
            [
                len(self.tokenizer),
                *(int(model.text_config.vocab_size) for model in self.models.values()),
            ]
        )

    def with_target(self, target: TargetDescription, heads: ServedHeads) -> ServedPair:
        """Return the pair of these draft models and a target on a server, with the heads that draft
        from its states.
        """
        models = {**self.models, **heads.loaded}
        others = {name: model for name, model in models.items() if name != DRAFT}
        draft = self.models.get(DRAFT)
        return ServedPair(
            ServedTarget(target), draft, self.tokenizer, self.masked, others, models, heads.refused
        )


def load_draft_models(
    draft: str,
    names: Sequence[str],
    target: ModelSource,
    *,
    device: str,
    dtype: str,
    executor: str = AUTO,
) -> DraftModels:
    """Load the draft models that methods need, by name, and the tokenizer of `draft`, which is
    always needed.

    Heads are left to `load_heads`, since they have to fit the server's target.

    `target` is what the server is expected to hold; its tokenizer is used if no draft model belongs to it.
    """
    names = [name for name in names if not name.startswith(HEAD)]
    sources = {name: find_draft(draft if name == DRAFT else name, target) for name in names}
    shared = target if is_missing_draft(draft, target) else find_draft(draft, target)
    tokenizer = load_draft_tokenizer(shared, target)
    differing = set[int]()
    for name in names:
        if name != DRAFT:
            differing |= set(
                unshared(tokenizer, load_draft_tokenizer(sources[name], target), (draft, name))
            )
    models = {
        name: load_apart(source, target, device=device, dtype=dtype, executor=executor)
        for name, source in sources.items()
    }
    return DraftModels(tokenizer, models, tuple(sorted(differing)))


def load_heads(
    names: Iterable[str],
    target: TargetDescription,
    expected: ModelSource,
    *,
    device: str,
    dtype: str,
) -> ServedHeads:
    """Load the heads of a target on a server; `expected` is the model, on this machine, that it is
    believed to be.
    """
    heads = ServedHeads()
    for name in names:
        try:
            heads.loaded[name] = _load(name, target, expected, device=device, dtype=dtype)
        except SkitError as error:
            heads.refused[name] = error
    return heads


def _load(
    name: str, target: TargetDescription, expected: ModelSource, *, device: str, dtype: str
) -> LoadedModel:
    if not target.layers:
        raise SkitError(
            f"{name} drafts from the target's hidden states, which this server does not send: name another drafter, or "
            "serve the target with this version of skit serve"
        )
    source = find(name, ServedTarget(target).source)
    sizes = TargetSizes(target.layers, target.hidden_size, target.vocabulary)

    @cache  # a head may lack both ends, and a hash reads all weights
    def files() -> Path:
        if hash_model(expected.folder) != target.hash:
            raise SkitError(
                f"the head '{source.label}' uses the embeddings of its target, of which the server has another: name "
                f"the files of {target.name} on this machine by --target"
            )
        return expected.complete_folder(weights=True)

    folder = source.folder
    placed = resolve_device(device)
    own_dtype = resolve_dtype(dtype, placed)
    if is_medusa(folder):
        medusa = load_medusa(folder, sizes).to(device=placed, dtype=own_dtype)
        return LoadedModel(medusa, source)
    ends = TargetEnds(lambda: read_embedding(files()), lambda: read_output(files()))
    return LoadedModel(on_device(load_head_for(folder, sizes, ends, own_dtype), placed), source)
