"""Rotary positions whose frequencies depend on the longest request of a forward: each request keeps its own.

`longrope` changes its frequencies, for all that is in a forward, once one position passes the length of its training,
and `dynamic` with every position beyond the context. Below that both are constant, and there alone they are run.
"""

from collections.abc import Mapping
from typing import Any

RESCALING = ("dynamic", "longrope")


def scaled_from(config: Any) -> list[int]:
    """The positions from which on a model's frequencies change, of each kind of layer that has such."""
    found = getattr(config, "rope_parameters", None) or {}
    kinds = [found] if "rope_type" in found else [kind for kind in found.values() if isinstance(kind, Mapping)]
    limits = [_length(config, kind) for kind in kinds if kind.get("rope_type") == "longrope"]
    return [int(limit) for limit in limits if limit]


def hold_scale(model: Any) -> None:
    """Keep the frequencies below that limit, whatever else is in a forward, such as a draft past the context's end."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, Mapping):
            module.rope_type = {layer: _held(one) for layer, one in kind.items()}
        elif kind is not None:
            module.rope_type = _held(kind)


def _length(config: Any, kind: Mapping[str, Any]) -> int | None:
    """The length of training, which some models say beside their rope."""
    return kind.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)


def _held(kind: str) -> str:
    return "default" if kind in RESCALING else kind
