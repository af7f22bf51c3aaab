"""Load a target, a draft and the tokenizer they share."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specbench_kit.errors import SkitError
from specbench_kit.models.catalogue import resolve_folder
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner

SLACK = 64
"""Tokens of a slot beyond prompt and output, for drafts that run over the end."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft model (transformers causal LMs) with one vocabulary."""

    target: Any
    draft: Any
    tokenizer: Any
    target_name: str
    draft_name: str

    @property
    def context(self) -> int:
        """Positions that both models have."""
        return min(_positions(self.target), _positions(self.draft))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the target's generation settings, else the tokenizer's."""
        wanted = self.target.generation_config.eos_token_id
        wanted = self.tokenizer.eos_token_id if wanted is None else wanted
        return frozenset(wanted if isinstance(wanted, list) else [] if wanted is None else [wanted])

    def runners(self, slots: int, capacity: int) -> tuple[Runner, Runner]:
        """Target and draft runners whose slots hold `capacity` tokens, or the context where that is less."""
        size = min(capacity + SLACK, self.context)
        vocabulary = min(model.config.get_text_config().vocab_size for model in (self.target, self.draft))
        target, draft = (
            Runner(make_executor(model), slots, size, model.device, model.dtype, vocabulary)
            for model in (self.target, self.draft)
        )
        return target, draft


def load_pair(target: str, draft: str, *, device: str = "auto", dtype: str = "auto") -> Pair:
    """Load both models; a missing model or two tokenizers that differ are errors of one line."""
    place = resolve_device(device)
    tokenizers = [_load_tokenizer(name) for name in (target, draft)]
    if tokenizers[0].get_vocab() != tokenizers[1].get_vocab():
        raise SkitError(
            f"the tokenizers of target '{target}' and draft '{draft}' differ: "
            "speculative decoding needs two models with one vocabulary"
        )
    models = [_load_model(name, place, resolve_dtype(dtype, place)) for name in (target, draft)]
    return Pair(models[0], models[1], tokenizers[0], target, draft)


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


def _positions(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20)


def _load_tokenizer(name: str) -> Any:
    return _from_pretrained(AutoTokenizer, name)


def _load_model(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    logging.disable_progress_bar()
    model = _from_pretrained(AutoModelForCausalLM, name, dtype=dtype)
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the fused attention has no soft cap
    return model.to(device).eval().requires_grad_(False)


def _from_pretrained(factory: Any, name: str, **options: Any) -> Any:
    source, offline = resolve_folder(name)
    try:
        return factory.from_pretrained(source, local_files_only=offline, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SkitError(f"cannot load model '{name}': {reason}") from error


def folder_of(name: str) -> Path | None:
    """The local folder of a model, or None for one from the hub."""
    source, _ = resolve_folder(name)
    return Path(source) if Path(source).is_dir() else None
