"""Draft models made of a few layers of one target, which read its embedding and may draft only a
part of its tokens.

A folder holds `config.json`, whose `draft_vocab_size` is the number of tokens that the model can draft, and
`model.safetensors` without an embedding, with `lm_head.weight` [draft tokens, hidden size] and `d2t`, the offset from
the number of each of these tokens to the target's token id. Matrices may be stored in 8 bits, one scale per row.

A draft that exits early (LayerSkip, arXiv 2404.16710) is the target's own first layers with the
target's weights, so that no second model is loaded. Its KV is kept apart from the target's: the
first layers are computed again in verification, which LayerSkip saves, and a draft's time is a
little longer than there.
"""

import json
import re
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.files import require_contents
from specbench_kit.core.plain_text import first_line
from specbench_kit.models.weights.stored import mark_shell, restore_tables, stored_tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OFFSETS = "d2t"
SIZE = "draft_vocab_size"
OUTPUT = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
SCALE = ".scale"
BELOW = 10.0
"""The logit of a token that cannot be drafted lies this far below the smallest of those that
can.
"""


class ReducedOutput(nn.Module):
    """An output layer with a row for each of some `tokens` of a vocabulary; it returns logits of
    the whole.
    """

    tokens: Tensor

    def __init__(self, width: int, tokens: Tensor, total: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(tokens), width))
        self.register_buffer("tokens", tokens, persistent=False)
        self.total = total

    @property
    def out_features(self) -> int:
        """Return the number of tokens that can be drafted."""
        return len(self.tokens)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocabulary]."""
        return expand_logits(linear(hidden, self.weight), self.tokens, self.total)


def expand_logits(logits: Tensor, tokens: Tensor, total: int) -> Tensor:
    """Return logits of `total` tokens; tokens outside `tokens` get less than any inside."""
    expanded = (logits.amin(-1, keepdim=True) - BELOW).repeat(*[1] * (logits.dim() - 1), total)
    return expanded.index_copy_(-1, tokens, logits)


def is_reduced(model: Any) -> bool:
    """Return whether a model can draft only a part of its vocabulary."""
    return isinstance(getattr(model, "lm_head", None), ReducedOutput)


def is_reduced_draft(folder: Path) -> bool:
    """Return whether a folder claims to hold such a model, even if it is damaged."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return SIZE in config and "speculators_config" not in config
    except (OSError, ValueError, TypeError):
        return False


def require_layers(target: Any, layers: tuple[int, ...]) -> None:
    """Raise SkitError if a target does not have these layers."""
    depth = target.config.get_text_config().num_hidden_layers
    require(
        bool(layers) and all(0 <= layer < depth for layer in layers),
        f"--layers names layers that the target does not have: {','.join(map(str, layers))} of {depth}",
    )


def new_draft(target: Any, layers: tuple[int, ...], tokens: Tensor) -> Any:
    """Return a draft made of some layers of a target, with its embedding, last norm and the output
    rows of `tokens`.
    """
    config = _shortened(target.config.get_text_config(), layers)
    draft = _construct(config, tokens)
    own = draft.state_dict()
    renamed = {
        f"model.layers.{source}.": f"model.layers.{index}." for index, source in enumerate(layers)
    }
    with torch.no_grad():
        for name, weight in target.state_dict().items():
            prefix = next((prefix for prefix in renamed if name.startswith(prefix)), None)
            name = name if prefix is None else renamed[prefix] + name.removeprefix(prefix)
            if name in own and own[name].shape == weight.shape and name != OUTPUT:
                own[name].copy_(weight)
        draft.lm_head.weight.copy_(target.get_output_embeddings().weight[tokens.to(target.device)])
    draft.get_input_embeddings().weight.requires_grad_(False)
    return draft.to(target.device)


def save_draft(draft: Any, folder: Path, *, in_8_bits: bool = False) -> None:
    """Write a draft without its embedding, in bf16 or with matrices in 8 bits."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = draft.lm_head.tokens.cpu()
    config = draft.config.to_diff_dict() | {
        "architectures": [type(draft).__name__],
        SIZE: len(tokens),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    state = {
        name: weight.detach().cpu()
        for name, weight in draft.state_dict().items()
        if name != EMBEDDING
    }
    tensors: dict[str, Tensor] = {OFFSETS: tokens - torch.arange(len(tokens))}
    for name, weight in state.items():
        if in_8_bits and weight.ndim == 2:
            scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            tensors[name] = (weight.float() / scale).round().to(torch.int8)
            tensors[name + SCALE] = scale
        else:
            tensors[name] = weight.to(torch.bfloat16)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def load_draft(folder: Path, target: Any) -> Any:
    """Load a draft on its target's device and in its data type; raise SkitError if it was made for
    another target.

    That of a shell is a shell as well, whose embedding stays in the target's files.
    """
    embedding = target.get_input_embeddings().weight
    draft = load_draft_for(folder, target.config, lambda: embedding).to(
        device=target.device, dtype=target.dtype
    )
    if stored_tensor(embedding) is None:
        return draft
    draft.get_input_embeddings().weight = embedding
    return mark_shell(draft)


def load_draft_for(folder: Path, target: Any, embedding: Callable[[], Tensor]) -> Any:
    """Load the draft of a target with this configuration; `embedding` returns the input embeddings
    of the target.

    They are not copied if they are not in memory.
    """
    text = target.get_text_config()
    try:
        require_contents(folder)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError, ValueError) as error:
        raise SkitError(f"cannot read the draft in '{folder}': {first_line(error)}") from error
    require(
        (config.hidden_size, config.vocab_size) == (text.hidden_size, text.vocab_size),
        f"the draft in '{folder}' was made for a target of width {config.hidden_size} with {config.vocab_size} tokens, "
        f"and this one has {text.hidden_size} and {text.vocab_size}: give the target that it was trained for",
    )
    offsets = tensors.pop(OFFSETS, None)
    count = getattr(config, SIZE, 0)
    require(
        offsets is not None and len(offsets) == count and OUTPUT in tensors,
        f"the draft in '{folder}' is not whole: {OFFSETS} or {OUTPUT} is missing, or has another size than its config",
    )
    assert offsets is not None
    tokens = torch.arange(count) + offsets.long()
    require(
        count > 0 and 0 <= int(tokens.min()) <= int(tokens.max()) < text.vocab_size,
        f"the draft in '{folder}' drafts tokens that the target does not have: its {OFFSETS} is damaged",
    )
    draft = _construct(config, tokens)
    weights = {name: _widened(tensors, name) for name in tensors if not name.endswith(SCALE)}
    weights[EMBEDDING] = embedding()
    expected = draft.state_dict()
    wrong = [
        name
        for name in expected
        if name not in weights or weights[name].shape != expected[name].shape
    ]
    require(
        not wrong,
        f"the draft in '{folder}' is not whole: {min(wrong, default='')} is missing or has another shape",
    )
    present = {name: weights[name] for name in expected if not weights[name].is_meta}
    draft.load_state_dict(present, strict=False)
    return draft.eval().requires_grad_(False)


def _widened(tensors: dict[str, Tensor], name: str) -> Tensor:
    """Return a weight; one in 8 bits is rounded to bf16, in which a CPU stores it."""
    weight = tensors[name]
    scale = tensors.get(name + SCALE)
    return weight if scale is None else (weight.float() * scale).to(torch.bfloat16)


def _shortened(config: Any, layers: tuple[int, ...]) -> Any:
    """Return a configuration with these layers alone."""
    values = config.to_dict() | {"num_hidden_layers": len(layers), "tie_word_embeddings": False}
    if values.get("layer_types"):
        values["layer_types"] = [values["layer_types"][layer] for layer in layers]
    return type(config).from_dict(values)


def _construct(config: Any, tokens: Tensor) -> Any:
    """Return an untrained model in float32 whose output layer has rows for `tokens` alone."""
    config.tie_word_embeddings = False
    # The full output layer is never allocated: for a large vocabulary it would be most of the
    # memory.
    with torch.device("meta"):
        draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draft.lm_head = None
    draft = draft.to_empty(device="cpu")
    draft.lm_head = ReducedOutput(config.hidden_size, tokens, config.vocab_size)
    restore_tables(draft, config)
    return draft


EARLY_EXIT = "early-exit"


def exit_layer(name: str) -> int | None:
    """Return the number of layers of a draft named `early-exit:LAYERS`; None for any other name."""
    kind, _, layers = name.partition(":")
    if kind != EARLY_EXIT:
        return None
    if not re.fullmatch(r"[1-9]\d*", layers):
        raise SkitError(
            f"early-exit needs the number of layers after which it exits, as in early-exit:4, not '{name}'"
        )
    return int(layers)


def exit_early(model: Any, layers: int) -> Any:
    """Return a model of the first layers of a Llama-shaped model, its norm and its head; the
    weights are shared.
    """
    inner: Any = getattr(model, "model", None)
    if not all(hasattr(inner, part) for part in ("layers", "norm", "embed_tokens")):
        raise SkitError(
            f"models of type '{model.config.model_type}' cannot exit early: they are not shaped like Llama"
        )
    if layers >= len(inner.layers):
        raise SkitError(
            f"early-exit:{layers} must exit before the last of the target's {len(inner.layers)} layers"
        )
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
