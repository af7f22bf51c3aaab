"""Models of transformers that read their weights when they are needed; see
`models/weights/stored.py`.

Their rotary frequencies may be fixed, where they would depend on the longest request of a forward.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.gguf import original_file
from specbench_kit.models.hub_cache import CONFIG, weight_names
from specbench_kit.models.weights.blocks import stored_blocks
from specbench_kit.models.weights.stored import (
    StoredTensor,
    mark_shell,
    read_headers,
    restore_tables,
)

PLAIN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types of models whose parameters are the tensors of their files, and which the native executors
compute.
"""
OWN_KERNELS: dict[str, Any] = dict.fromkeys(("attn_implementation", "experts_implementation"))
"""None is transformers' own choice: a configuration may otherwise name kernels of the hub, which
are foreign code.
"""
ADAPTER = "adapter_config.json"
"""The file beside a model's weights that makes transformers add an adapter to them."""


def make_shell(source: ModelSource, config: Any, dtype: torch.dtype) -> Any | None:
    """Return a model that reads its weights when they are needed; None if its files are not those
    of a plain model.

    They must name the parameters as transformers does. Whatever is special, or damaged, is left to
    transformers, and so are types of models whose weights it may change on the way.
    """
    if config.model_type not in PLAIN_TYPES:
        return None
    with suppress(OSError, SafetensorError, ValueError):
        tensors = read_headers(weight_files(source))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, **OWN_KERNELS)
        parameters = dict(model.named_parameters())
        fitting = all(_fits(parameter, tensors.get(name)) for name, parameter in parameters.items())
        # A tied layer that has a tensor of its own may differ from the one that it is tied to.
        tied = set(dict(model.named_parameters(remove_duplicate=False))) - set(parameters)
        if not parameters or not fitting or tied & set(tensors):
            return None
        blocks = stored_blocks(source.folder, original_file)
        for name, parameter in parameters.items():
            parameter.stored = tensors[name]
            parameter.blocks = blocks.get(name)
        restore_tables(model, model.config.get_text_config())
        model.generation_config = _generation_config(source.folder)
        return mark_shell(model).requires_grad_(False)
    return None


def weight_files(source: ModelSource) -> list[Path]:
    """Return the safetensors files of a model, which are downloaded first if it is on the hub;
    empty without such.
    """
    folder = source.complete_folder(weights=True)
    files = [folder / name for name in weight_names(folder)]
    readable = all(file.suffix == ".safetensors" and file.is_file() for file in files)
    return files if readable and not (folder / ADAPTER).is_file() else []


def _fits(parameter: Tensor, tensor: StoredTensor | None) -> bool:
    return (
        tensor is not None and tensor.dtype is not None and tensor.shape == tuple(parameter.shape)
    )


def _generation_config(folder: Path) -> Any:
    """Return the generation config of a model's files, which transformers reads like this with the
    weights.
    """
    try:
        return GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    except OSError:  # older models have it among the rest of their configuration
        return GenerationConfig.from_model_config(
            json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        )


RESCALING = ("dynamic", "longrope")


def scaled_from(config: Any) -> list[int]:
    """Return the positions from which a model's frequencies change, for each kind of layer that has
    such.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = (
        [ropes]
        if "rope_type" in ropes
        else [kind for kind in ropes.values() if isinstance(kind, Mapping)]
    )
    limits = [_length(config, kind) for kind in kinds if kind.get("rope_type") == "longrope"]
    return [int(limit) for limit in limits if limit]


def hold_scale(model: Any) -> None:
    """Fix the frequencies to those below that limit, even if a draft in the batch reaches past the
    context.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, Mapping):
            module.rope_type = {layer: _fixed(rope_type) for layer, rope_type in kind.items()}
        elif kind is not None:
            module.rope_type = _fixed(kind)


def _length(config: Any, kind: Mapping[str, Any]) -> int | None:
    """Return the length that a model was trained with; some models keep it outside their rope
    parameters.
    """
    return kind.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )


def _fixed(kind: str) -> str:
    return "default" if kind in RESCALING else kind
