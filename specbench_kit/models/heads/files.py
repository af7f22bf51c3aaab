"""Heads on disk, as the `speculators` library writes them: config.json and model.safetensors.

A head without an embedding of its own gets the target's, which is read without the rest of the
target. Matrices in 4 bits, and an output matrix that is left out because it is the target's rows,
are the kit's own addition to the format.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_no_pointer
from specbench_kit.models.heads.config import CONFIG, WEIGHTS, read_config
from specbench_kit.models.heads.medusa import MedusaModel, is_medusa, make_medusa
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.weights.packed import (
    BLOCKS_KEY,
    TYPE,
    can_be_packed,
    pack,
    packed_parameters,
    rows_of,
)
from specbench_kit.models.weights.stored import (
    mark_shell,
    restore_tables,
    stored_tensor,
    with_weights,
)

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"


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


class TargetEnds(NamedTuple):
    """The target's input embeddings and its output matrix, of which a head reads what it lacks.

    Each may be a shell's parameter, which is not read before something computes with it.
    """

    embedding: Callable[[], Tensor]
    output: Callable[[], Tensor]


def load_any_head(folder: Path, target: Any) -> HeadModel | MedusaModel:
    """Load the head of a target, or its Medusa heads; see `load_head`."""
    if not is_medusa(folder):
        return load_head(folder, target)
    return load_medusa(folder, sizes_of(target)).to(device=target.device, dtype=target.dtype)


def load_head(folder: Path, target: Any) -> HeadModel:
    """Load the head of a target, a transformers model, on the target's device and in its data
    type.

    It is a shell where its matrices are in 4 bits, or where the target's are in their files.
    """
    ends = TargetEnds(
        lambda: target.get_input_embeddings().weight, lambda: target.get_output_embeddings().weight
    )
    head = load_head_for(folder, sizes_of(target), ends, target.dtype)
    return on_device(head, target.device)


def on_device(head: HeadModel, device: torch.device) -> HeadModel:
    """Return a head on a device; elsewhere than on a CPU its weights are read for that."""
    return head if device.type == "cpu" else with_weights(head).to(device)


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


def load_head_for(
    folder: Path, target: TargetSizes, ends: TargetEnds, dtype: torch.dtype
) -> HeadModel:
    """Load the head of a target of these sizes, in a data type; `ends` gives what the head has not
    itself.
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
    with torch.device("meta"):
        head = HeadModel(config)
    restore_tables(head, config.layer)
    offsets = weights.pop("d2t", torch.zeros(config.draft_vocab_size)).long()
    if offsets.shape != head.d2t.shape:
        raise _not_whole(folder, "d2t")
    head.d2t = offsets
    if not 0 <= int(head.tokens.min()) <= int(head.tokens.max()) < target.vocabulary:
        raise SkitError(
            f"the head in '{folder}' drafts tokens that the target does not have: its d2t is damaged"
        )
    weights = _as_parameters(folder / WEIGHTS, weights, dtype)
    head.owns_embedding = EMBEDDING in weights
    if not head.owns_embedding and target.hidden_size == config.layer.hidden_size:
        weights[EMBEDDING] = ends.embedding()
    if OUTPUT not in weights and config.output_of_target:
        weights[OUTPUT] = rows_of(ends.output(), head.tokens)
    for name, empty in dict(head.named_parameters()).items():
        weight = weights.get(name)
        if weight is None or weight.shape != empty.shape:
            raise _not_whole(folder, name)
        module, _, own = name.rpartition(".")
        held = weight if stored_tensor(weight) is not None else weight.detach().to(dtype)
        setattr(
            head.get_submodule(module),
            own,
            held if isinstance(held, nn.Parameter) else nn.Parameter(held, requires_grad=False),
        )
    shell = any(weight.is_meta for weight in head.parameters())
    ready = mark_shell(head) if shell else head
    loaded: HeadModel = ready.eval().requires_grad_(False)
    return loaded


def _not_whole(folder: Path, name: str) -> SkitError:
    return SkitError(f"the head in '{folder}' is not whole: {name} is missing or has another shape")


def _as_parameters(file: Path, weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights of a file, of which those in blocks are left there."""
    if all(weight.dtype != torch.uint8 for weight in weights.values()):
        return weights
    try:
        return weights | packed_parameters(file, weights, dtype)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkitError(f"cannot read the head's weights in '{file}': {error}") from error


def save_head(
    head: HeadModel,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    *,
    in_4_bits: bool = False,
) -> None:
    """Write a head, without its embedding if that is the target's own.

    `in_4_bits` also leaves out an output matrix that is the target's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(
        json.dumps(head.config.as_json(), indent=2) + "\n", encoding="utf-8"
    )
    state = head.state_dict()
    if not head.owns_embedding:
        del state[EMBEDDING]
    if in_4_bits:
        _save_in_4_bits(head, state, folder)
        return
    weights = {
        name: weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in state.items()
    }
    mapped = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    mapped[head.tokens.cpu()] = True
    contiguous = {name: weight.contiguous().cpu() for name, weight in weights.items()}
    save_file(contiguous | {"t2d": mapped}, folder / WEIGHTS, metadata={"format": "pt"})


def _save_in_4_bits(head: HeadModel, state: dict[str, Tensor], folder: Path) -> None:
    if head.config.output_of_target:
        del state[OUTPUT]
    unfit = [
        name for name, weight in state.items() if weight.dim() > 1 and not can_be_packed(weight)
    ]
    if unfit:
        raise SkitError(
            f"the head cannot be stored in 4 bits: the inputs of {min(unfit)} are no multiple of 32"
        )
    weights = {
        name: pack(weight)
        if weight.dim() > 1
        else weight.float()
        if weight.is_floating_point()
        else weight
        for name, weight in state.items()
    }
    contiguous = {name: weight.contiguous().cpu() for name, weight in weights.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt", BLOCKS_KEY: TYPE})


def _read(path: Path) -> dict[str, Tensor]:
    try:
        require_no_pointer(path)
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise SkitError(f"cannot read the head's weights in '{path}': {error}") from error


EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
OUTPUTS = ("lm_head.weight", "embed_out.weight")
"""How the names of input embeddings, and of output matrices, end in the checkpoints of different
architectures.
"""


def read_embedding(folder: Path) -> Tensor:
    """Return the input embeddings [vocabulary, width] of a model in a folder; raise SkitError if
    there are none.
    """
    embedding = _read_first(folder, EMBEDDINGS)
    if embedding is None:
        raise SkitError(
            f"'{folder}' holds no .safetensors file with embeddings, which a head shares with its target: name the "
            "target's folder by --target"
        )
    return embedding


def read_output(folder: Path) -> Tensor:
    """Return the output matrix [vocabulary, width] of a model in a folder: its embeddings, if it
    has no other.
    """
    output = _read_first(folder, OUTPUTS)
    return read_embedding(folder) if output is None else output


def _read_first(folder: Path, endings: tuple[str, ...]) -> Tensor | None:
    try:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (it is no dictionary)
                    if name.endswith(endings):
                        found: Tensor = weights.get_tensor(name)
                        return found
    except (OSError, SafetensorError) as error:
        raise SkitError(f"cannot read the embeddings in '{folder}': {error}") from error
    return None
