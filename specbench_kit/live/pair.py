"""A pair whose target is on a server: the draft models here, and what the server said of the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.models.catalogue import ModelSource, from_pretrained, locate
from specbench_kit.models.head_library import HEAD
from specbench_kit.models.pair import LoadedModel, Pair, load_model
from specbench_kit.models.tokenizers import unshared


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """What a server says of its target; `parameters` may be unknown."""

    name: str
    hash: str
    dtype: str
    vocabulary: int
    context: int
    eos_ids: tuple[int, ...]
    bitwise: bool
    parameters: int | None = None
    server: str = ""


class ServedTarget(LoadedModel):
    """A model that is not here: only what the kit records of one is known."""

    def __init__(self, stated: TargetDescription) -> None:
        self_device = torch.device("cpu")  # what the clock here need not wait for
        model = SimpleNamespace(
            device=self_device,
            dtype=stated.dtype,
            generation_config=SimpleNamespace(eos_token_id=list(stated.eos_ids), to_diff_dict=dict),
        )
        super().__init__(model, ModelSource(stated.name, stated.name, local_only=True))
        object.__setattr__(self, "stated", stated)

    stated: TargetDescription

    @property
    def text_config(self) -> Any:
        return SimpleNamespace(vocab_size=self.stated.vocabulary)

    @property
    def context(self) -> int:
        return self.stated.context

    def describe(self, hash_folder: Callable[[Path], str]) -> dict[str, Any]:
        return {"name": self.stated.name, "hash": self.stated.hash, "parameters": self.stated.parameters}


@dataclass(frozen=True, slots=True)
class ServedPair(Pair):
    """Its `loaded` models are those that are here."""

    here: dict[str, LoadedModel] = field(default_factory=dict)

    @property
    def loaded(self) -> dict[str, LoadedModel]:
        return self.here

    @property
    def vocabulary(self) -> int:
        """Tokens that all models know."""
        return min(int(one.text_config.vocab_size) for one in (self.target, *self.here.values()))


@dataclass(frozen=True, slots=True)
class DraftModels:
    """The draft models that are here, and the tokenizer of the first."""

    tokenizer: Any
    models: dict[str, LoadedModel]
    masked: tuple[int, ...]

    @property
    def vocabulary(self) -> int:
        """Tokens that may come from here."""
        return min([len(self.tokenizer), *(int(one.text_config.vocab_size) for one in self.models.values())])

    def with_target(self, stated: TargetDescription) -> ServedPair:
        """With a target elsewhere."""
        others = {name: loaded for name, loaded in self.models.items() if name != DRAFT}
        return ServedPair(
            ServedTarget(stated), self.models.get(DRAFT), self.tokenizer, self.masked, others, self.models
        )


def load_draft_models(draft: str, names: Sequence[str], *, device: str, dtype: str) -> DraftModels:
    """Those that methods need, by name; the tokenizer is the draft model's, whether that is needed or not."""
    if heads := [name for name in names if name.startswith(HEAD)]:
        raise SkitError(f"{heads[0]} reads the target's hidden states, which stay on the server: name another drafter")
    sources = {name: locate(draft if name == DRAFT else name, "draft") for name in names}
    tokenizer = from_pretrained(AutoTokenizer, locate(draft, "draft"))
    differing = set[int]()
    for name in names:
        if name != DRAFT:
            differing |= set(unshared(tokenizer, from_pretrained(AutoTokenizer, sources[name]), (draft, name)))
    models = {name: load_model(source, device=device, dtype=dtype) for name, source in sources.items()}
    return DraftModels(tokenizer, models, tuple(sorted(differing)))
