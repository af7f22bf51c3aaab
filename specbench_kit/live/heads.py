"""EAGLE heads on a device whose target is on a server: they draft from the hidden states that verdicts bring."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.live.pair import ServedHeads, ServedTarget, TargetDescription
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.head_library import find
from specbench_kit.models.heads.embedding import read_embedding
from specbench_kit.models.heads.files import TargetSizes, load_head_for
from specbench_kit.models.pair import LoadedModel, resolve_device, resolve_dtype
from specbench_kit.runs.provenance import hash_model


def load_heads(
    names: Iterable[str], target: TargetDescription, expected: ModelSource, *, device: str, dtype: str
) -> ServedHeads:
    """Load the heads of a target on a server; `expected` is the model, on this machine, that it is believed to be."""
    heads = ServedHeads()
    for name in names:
        try:
            heads.loaded[name] = _load(name, target, expected, device=device, dtype=dtype)
        except SkitError as error:
            heads.refused[name] = error
    return heads


def _load(name: str, target: TargetDescription, expected: ModelSource, *, device: str, dtype: str) -> LoadedModel:
    if not target.layers:
        raise SkitError(
            f"{name} drafts from the target's hidden states, which this server does not send: name another drafter, or "
            "serve the target with this version of skit serve"
        )
    source = find(name, ServedTarget(target).source)
    sizes = TargetSizes(target.layers, target.hidden_size, target.vocabulary)

    def embedding() -> Tensor:
        if hash_model(Path(expected.location)) != target.hash:
            raise SkitError(
                f"the head '{source.label}' uses the embeddings of its target, of which the server has another: name "
                f"the files of {target.name} on this machine by --target"
            )
        return read_embedding(Path(expected.location))

    head = load_head_for(Path(source.location), sizes, embedding)
    placed = resolve_device(device)
    return LoadedModel(head.to(device=placed, dtype=resolve_dtype(dtype, placed)), source)
