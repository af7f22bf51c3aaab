"""The input embeddings of a model, read from its files without the rest of it."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench_kit.core.errors import SkitError

NAMES = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
"""How the names of input embeddings end in the checkpoints of different architectures."""


def read_embedding(folder: Path) -> Tensor:
    """Return the input embeddings [vocabulary, width] of a model in a folder; raise SkitError if there are none."""
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
