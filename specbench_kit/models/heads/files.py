"""Heads on disk, as the `speculators` library writes them: config.json and model.safetensors.

A head without an embedding of its own gets the target's, which is read without the rest of the
target.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_no_pointer
from specbench_kit.models.heads.config import CONFIG, WEIGHTS, read_config
from specbench_kit.models.heads.medusa import MedusaModel, is_medusa, make_medusa
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.weights.stored import weight_of

EMBEDDING = "embed_tokens.weight"


def is_head(folder: Path) -> bool:
    """Return whether a folder claims to hold a head, even if it is damaged."""
    try:
        return "speculators_model_type" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


class TargetSizes(NamedTuple):
    """The sizes of a target that a head has to fit."""

    layers: int
    hidden_size: int
    vocabulary: int


def load_any_head(folder: Path, target: Any) -> HeadModel | MedusaModel:
    """Load the head of a target, or its Medusa heads; see `load_head`."""
    if not is_medusa(folder):
        return load_head(folder, target)
    return load_medusa(folder, sizes_of(target)).to(device=target.device, dtype=target.dtype)


def load_head(folder: Path, target: Any) -> HeadModel:
    """Load the head of a target, a transformers model, on the target's device and in its data
    type.
    """
    head = load_head_for(
        folder, sizes_of(target), lambda: weight_of(target.get_input_embeddings().weight)
    )
    return head.to(device=target.device, dtype=target.dtype)


def sizes_of(target: Any) -> TargetSizes:
    """Return the sizes of a transformers model."""
    text = target.config.get_text_config()
    return TargetSizes(text.num_hidden_layers, text.hidden_size, text.vocab_size)


def load_medusa(folder: Path, target: TargetSizes) -> MedusaModel:
    """Load the Medusa heads of a target of these sizes."""
    model = make_medusa(folder, _read(folder / WEIGHTS))
    config = model.config
    if (config.depth, config.hidden_size, config.vocab_size) != target:
        raise SkitError(
            f"the heads in '{folder}' were made for {config.depth} layers of width {config.hidden_size} and "
            f"{config.vocab_size} tokens, and the target has {target.layers}, {target.hidden_size} and "
            f"{target.vocabulary}: choose heads made for it"
        )
    return model


def load_head_for(folder: Path, target: TargetSizes, embedding: Callable[[], Tensor]) -> HeadModel:
    """Load the head of a target of these sizes; `embedding` returns the target's, for a head that
    has none.
    """
    weights = _read(folder / WEIGHTS)
    config = read_config(folder, target.layers, fc_bias="fc.bias" in weights)
    if (config.target_hidden_size, config.layer.vocab_size) != (
        target.hidden_size,
        target.vocabulary,
    ):
        raise SkitError(
            f"the head in '{folder}' reads states of width {config.target_hidden_size} and {config.layer.vocab_size} "
            f"tokens, and the target has {target.hidden_size} and {target.vocabulary}: choose a head made for it"
        )
    head = HeadModel(config)
    head.owns_embedding = EMBEDDING in weights
    if not head.owns_embedding and target.hidden_size == config.layer.hidden_size:
        weights[EMBEDDING] = embedding()
    weights.setdefault("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
    expected = head.state_dict()
    used = {name: weight for name, weight in weights.items() if name in expected}
    wrong = [
        name for name in expected if name not in used or used[name].shape != expected[name].shape
    ]
    if wrong:
        raise SkitError(
            f"the head in '{folder}' is not whole: {min(wrong)} is missing or has another shape"
        )
    head.load_state_dict(used)
    if not 0 <= int(head.tokens.min()) <= int(head.tokens.max()) < target.vocabulary:
        raise SkitError(
            f"the head in '{folder}' drafts tokens that the target does not have: its d2t is damaged"
        )
    return head.eval().requires_grad_(False)


def save_head(head: HeadModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a head, without its embedding if that is the target's own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(
        json.dumps(head.config.as_json(), indent=2) + "\n", encoding="utf-8"
    )
    state = head.state_dict()
    if not head.owns_embedding:
        del state[EMBEDDING]
    weights = {
        name: weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in state.items()
    }
    mapped = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    mapped[head.tokens.cpu()] = True
    contiguous = {name: weight.contiguous().cpu() for name, weight in weights.items()}
    save_file(contiguous | {"t2d": mapped}, folder / WEIGHTS, metadata={"format": "pt"})


def _read(path: Path) -> dict[str, Tensor]:
    try:
        require_no_pointer(path)
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise SkitError(f"cannot read the head's weights in '{path}': {error}") from error


NAMES = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
"""How the names of input embeddings end in the checkpoints of different architectures."""


def read_embedding(folder: Path) -> Tensor:
    """Return the input embeddings [vocabulary, width] of a model in a folder; raise SkitError if
    there are none.
    """
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (it is no dictionary)
                    if name.endswith(NAMES):
                        embedding: Tensor = weights.get_tensor(name)
                        return embedding
    except (OSError, SafetensorError) as error:
        raise SkitError(f"cannot read the embeddings in '{folder}': {error}") from error
    raise SkitError(
        f"'{folder}' holds no .safetensors file with embeddings, which a head shares with its target: name the "
        "target's folder by --target"
    )
