"""Load a target, a draft and the tokenizer they share."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import BUNDLED, SYNTHETIC, ModelSource, from_pretrained, locate, read_config
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.generation import ignored_settings
from specbench_kit.models.head_library import HEAD, find
from specbench_kit.models.heads.files import load_head
from specbench_kit.models.placement import Placement, require_memory
from specbench_kit.models.rope import hold_scale, scaled_from
from specbench_kit.models.runner import Runner
from specbench_kit.models.synthetic import load_synthetic
from specbench_kit.models.tokenizers import require_room, unshared

ONE_DEVICE = Placement()
SLACK = 64
"""Tokens of a slot beyond prompt and output, for drafts that run over the end."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A transformers causal LM and where it came from."""

    model: Any
    source: ModelSource

    @property
    def text_config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    def context(self) -> int:
        """Positions that the model has, up to where it would rescale them; one that names no limit gets a million."""
        named = getattr(self.text_config, "max_position_embeddings", None) or 1 << 20
        return min([int(named), *scaled_from(self.text_config)])

    def describe(self, hash_folder: Callable[[Path], str]) -> dict[str, Any]:
        """Name, content hash (hub models: their commit) and size, as a run records them."""
        folder = Path(self.source.location)
        return {
            "name": self.source.label,
            "hash": hash_folder(folder) if folder.is_dir() else str(self.model.config._commit_hash),
            "parameters": self.model.num_parameters(),
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the models that draft for it, all with one vocabulary; none where nothing is drafted by a model."""

    target: LoadedModel
    draft: LoadedModel | None
    tokenizer: Any
    masked: tuple[int, ...] = ()
    """Added tokens that only one of their tokenizers has: the target may say them, no draft ever does."""
    others: Mapping[str, LoadedModel] = field(default_factory=dict)
    """Further draft models, by the name that they were asked for by."""

    @property
    def needed_draft(self) -> LoadedModel:
        """The draft model, which not every method needs."""
        if self.draft is None:
            raise SkitError("no draft model was loaded, since no method here drafts with one: name a method that does")
        return self.draft

    @property
    def loaded(self) -> dict[str, LoadedModel]:
        """All models, by role or name."""
        return {"target": self.target, **({"draft": self.draft} if self.draft else {}), **self.others}

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the target's generation settings, else the tokenizer's."""
        wanted = self.target.model.generation_config.eos_token_id
        wanted = self.tokenizer.eos_token_id if wanted is None else wanted
        return frozenset(wanted if isinstance(wanted, list) else [] if wanted is None else [wanted])

    @property
    def vocabulary(self) -> int:
        """Tokens that both models know; what one pads its output with does not count."""
        return min(int(loaded.text_config.vocab_size) for loaded in self.loaded.values())

    def describe(self, hash_folder: Callable[[Path], str]) -> dict[str, Any]:
        """All models, as a run records them."""
        ignored = ignored_settings(self.target.model.generation_config)
        target = self.target.describe(hash_folder) | ({"ignored_settings": ignored} if ignored else {})
        others = {name: other.describe(hash_folder) for name, other in self.others.items()}
        if self.draft is None:
            return {"target": target} | others
        masked = {"masked_tokens": len(self.masked)} if self.masked else {}
        return {"target": target, "draft": self.draft.describe(hash_folder) | masked} | others

    def runners(self, slots: int, length: int, executor: str | None = None) -> tuple[Runner, Runner]:
        """Target and draft runners of `all_runners`."""
        runners = self.all_runners(slots, length, executor)
        return runners["target"], runners["draft"]

    def all_runners(self, slots: int, length: int, executor: str | None = None) -> dict[str, Runner]:
        """Runners whose slots hold `length` tokens and a draft, or the context where that is less.

        Each over the fastest executor that supports its model, or the named one.
        """
        size = min(length + SLACK, *(loaded.context for loaded in self.loaded.values()))
        runners = {
            name: Runner(
                make_executor(loaded.model, slots, size, self.vocabulary, None if name.startswith(HEAD) else executor)
            )
            for name, loaded in self.loaded.items()
        }
        for name, runner in runners.items():
            runner.masked = () if name == "target" or name.startswith(HEAD) else self.masked
        return runners


def load_pair(
    target: str = BUNDLED,
    draft: str | None = BUNDLED,
    *,
    others: Sequence[str] = (),
    device: str = "auto",
    dtype: str = "auto",
    placement: Placement = ONE_DEVICE,
) -> Pair:
    """Load all models; a missing model or two tokenizers that differ are errors of one line."""
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    heads = [name for name in others if name.startswith(HEAD)]
    drafts = [name for name in (draft, *others) if name is not None and name not in heads]
    sources = [locate(target, "target"), *(locate(name, "draft") for name in drafts)]
    if len({source.synthetic for source in sources}) > 1:
        raise SkitError(
            f"a synthetic model agrees with no other: give --target {SYNTHETIC} and --draft {SYNTHETIC}:ranks=0.8+0.1, "
            "or neither"
        )
    tokenizer, *tokenizers = map(_load_tokenizer, sources)
    differing = [unshared(tokenizer, one, (target, name)) for one, name in zip(tokenizers, drafts, strict=True)]
    loaded = [LoadedModel(_load_model(source, place, kind, placement), source) for source in sources]
    for one in loaded:
        require_room(tokenizer, one.source.label, int(one.text_config.vocab_size))
    by_name = dict(zip(drafts, loaded[1:], strict=True)) | {name: _load_head(name, loaded[0]) for name in heads}
    return Pair(
        target=loaded[0],
        draft=None if draft is None else loaded[1],
        tokenizer=tokenizer,
        masked=tuple(sorted({token for tokens in differing for token in tokens})),
        others={name: by_name[name] for name in others},
    )


def load_model(source: ModelSource, *, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """Load one model without its tokenizer; a missing one is an error of one line."""
    place = resolve_device(device)
    return LoadedModel(_load_model(source, place, resolve_dtype(dtype, place)), source)


def resolve_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, or the CPU where there is none."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise SkitError(f"unknown device '{name}': use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SkitError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on CPU, where output is compared token for token, and bfloat16 on CUDA."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    known["auto"] = torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in known:
        raise SkitError(f"unknown dtype '{name}': use {', '.join(sorted(known))}")
    return known[name]


def _load_tokenizer(source: ModelSource) -> Any:
    """A synthetic model reads and says what the bundled one does."""
    return from_pretrained(AutoTokenizer, locate(BUNDLED, "target") if source.synthetic else source)


def _load_head(name: str, target: LoadedModel) -> LoadedModel:
    source = find(name, target.source)
    return LoadedModel(load_head(Path(source.location), target.model), source)


def _load_model(
    source: ModelSource, device: torch.device, dtype: torch.dtype, placement: Placement = ONE_DEVICE
) -> Any:
    if source.synthetic:
        return load_synthetic(source, int(read_config(locate(BUNDLED, "target")).vocab_size))
    logging.disable_progress_bar()
    config = read_config(source)
    placed = placement.options(config, source.label, device)
    # None is transformers' own choice, in place of kernels from the hub that the configuration may name
    chosen = dict.fromkeys(("attn_implementation", "experts_implementation"))
    options = {"config": config, "dtype": dtype, "output_loading_info": True, **chosen, **placed}
    model, report = from_pretrained(AutoModelForCausalLM, source, **options)
    if report["missing_keys"]:  # transformers would leave them random
        raise SkitError(f"cannot load model '{source.label}': its weights lack {min(report['missing_keys'])}")
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the fused attention has no soft cap
    hold_scale(model)
    require_memory(model, source.label)
    return (model if placed else model.to(device)).eval().requires_grad_(False)
