"""Rotary embeddings whose frequencies depend on the longest request of a forward.

`longrope` changes its frequencies, for everything in a forward, once one position exceeds the length it was trained
with; `dynamic` does so with every position beyond the context. Then a request's output would depend on the others in
its batch, so such models run only up to that length, where both kinds are constant.
"""

from collections.abc import Mapping
from typing import Any

RESCALING = ("dynamic", "longrope")


def scaled_from(config: Any) -> list[int]:
    """Return the positions from which a model's frequencies change, for each kind of layer that has such."""
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = [ropes] if "rope_type" in ropes else [kind for kind in ropes.values() if isinstance(kind, Mapping)]
    limits = [_length(config, kind) for kind in kinds if kind.get("rope_type") == "longrope"]
    return [int(limit) for limit in limits if limit]


def hold_scale(model: Any) -> None:
    """Fix the frequencies to those below that limit, even if a draft in the batch reaches past the context."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, Mapping):
            module.rope_type = {layer: _fixed(rope_type) for layer, rope_type in kind.items()}
        elif kind is not None:
            module.rope_type = _fixed(kind)


def _length(config: Any, kind: Mapping[str, Any]) -> int | None:
    """Return the length that a model was trained with; some models keep it outside their rope parameters."""
    return kind.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)


def _fixed(kind: str) -> str:
    return "default" if kind in RESCALING else kind
