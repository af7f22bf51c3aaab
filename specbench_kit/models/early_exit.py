"""Self-speculation: the target's own first layers as a draft model that exits early (LayerSkip, arXiv 2404.16710).

The weights are the target's, so that no second model is loaded. Its KV is kept apart from the target's: the first
layers are computed again in verification, which LayerSkip saves, and a draft's time is a little longer than there.
"""

import re
from copy import copy, deepcopy
from typing import Any

from torch import nn

from specbench_kit.core.errors import SkitError

EARLY_EXIT = "early-exit"


def exit_layer(name: str) -> int | None:
    """Return the number of layers of a draft named `early-exit:LAYERS`; None for any other name."""
    kind, _, layers = name.partition(":")
    if kind != EARLY_EXIT:
        return None
    if not re.fullmatch(r"[1-9]\d*", layers):
        raise SkitError(f"early-exit needs the number of layers after which it exits, as in early-exit:4, not '{name}'")
    return int(layers)


def exit_early(model: Any, layers: int) -> Any:
    """Return a model of the first layers of a Llama-shaped model, its norm and its head; the weights are shared."""
    inner: Any = getattr(model, "model", None)
    if not all(hasattr(inner, part) for part in ("layers", "norm", "embed_tokens")):
        raise SkitError(f"models of type '{model.config.model_type}' cannot exit early: they are not shaped like Llama")
    if layers >= len(inner.layers):
        raise SkitError(f"early-exit:{layers} must exit before the last of the target's {len(inner.layers)} layers")
    small = copy(model)
    small._modules = dict(model._modules)
    small._parameters = dict(model._parameters)
    small.config = deepcopy(model.config)
    text = small.config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    small.model = copy(inner)
    small.model._modules = dict(inner._modules)
    small.model.config = text
    small.model.layers = nn.ModuleList(list(inner.layers)[:layers])
    return small.eval()
