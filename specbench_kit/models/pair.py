"""Load a target, a draft and the tokenizer they share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specbench_kit.errors import SkitError
from specbench_kit.models.catalogue import BUNDLED, ModelSource, from_pretrained, locate, read_config
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.generation import ignored_settings
from specbench_kit.models.rope import hold_scale, scaled_from
from specbench_kit.models.runner import Runner
from specbench_kit.models.tokenizers import require_room, unshared

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
    """A target and a draft model with one vocabulary."""

    target: LoadedModel
    draft: LoadedModel
    tokenizer: Any
    masked: tuple[int, ...] = ()
    """Added tokens that only one of their tokenizers has: the target may say them, the draft never does."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the target's generation settings, else the tokenizer's."""
        wanted = self.target.model.generation_config.eos_token_id
        wanted = self.tokenizer.eos_token_id if wanted is None else wanted
        return frozenset(wanted if isinstance(wanted, list) else [] if wanted is None else [wanted])

    @property
    def vocabulary(self) -> int:
        """Tokens that both models know; what one pads its output with does not count."""
        return min(int(loaded.text_config.vocab_size) for loaded in (self.target, self.draft))

    def describe(self, hash_folder: Callable[[Path], str]) -> dict[str, Any]:
        """Both models, as a run records them."""
        ignored = ignored_settings(self.target.model.generation_config)
        return {
            "target": self.target.describe(hash_folder) | ({"ignored_settings": ignored} if ignored else {}),
            "draft": self.draft.describe(hash_folder) | ({"masked_tokens": len(self.masked)} if self.masked else {}),
        }

    def runners(self, slots: int, length: int, executor: str | None = None) -> tuple[Runner, Runner]:
        """Target and draft runners whose slots hold `length` tokens and a draft, or the context where that is less.

        Each over the fastest executor that supports its model, or the named one.
        """
        models = (self.target, self.draft)
        size = min(length + SLACK, *(loaded.context for loaded in models))
        target, draft = (
            Runner(make_executor(loaded.model, slots, size, self.vocabulary, executor)) for loaded in models
        )
        draft.masked = self.masked
        return target, draft


def load_pair(target: str = BUNDLED, draft: str = BUNDLED, *, device: str = "auto", dtype: str = "auto") -> Pair:
    """Load both models; a missing model or two tokenizers that differ are errors of one line."""
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    sources = locate(target, "target"), locate(draft, "draft")
    tokenizers = [from_pretrained(AutoTokenizer, source) for source in sources]
    masked = unshared(tokenizers[0], tokenizers[1], (target, draft))
    loaded = [LoadedModel(_load_model(source, place, kind), source) for source in sources]
    for one in loaded:
        require_room(tokenizers[0], one.source.label, int(one.text_config.vocab_size))
    return Pair(target=loaded[0], draft=loaded[1], tokenizer=tokenizers[0], masked=tuple(masked))


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


def _load_model(source: ModelSource, device: torch.device, dtype: torch.dtype) -> Any:
    logging.disable_progress_bar()
    # None is transformers' own choice, in place of kernels from the hub that the configuration may name
    chosen = dict.fromkeys(("attn_implementation", "experts_implementation"))
    options = {"config": read_config(source), "dtype": dtype, "output_loading_info": True, **chosen}
    model, report = from_pretrained(AutoModelForCausalLM, source, **options)
    if report["missing_keys"]:  # transformers would leave them random
        raise SkitError(f"cannot load model '{source.label}': its weights lack {min(report['missing_keys'])}")
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the fused attention has no soft cap
    hold_scale(model)
    return model.to(device).eval().requires_grad_(False)
