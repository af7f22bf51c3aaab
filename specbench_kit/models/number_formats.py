"""The number formats of a run's models: in which each computes, and in which it was published."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import ModelSource, read_config
from specbench_kit.models.weights.blocks import read_record

if TYPE_CHECKING:
    from specbench_kit.models.pair import LoadedModel


def number_formats(models: "Mapping[str, LoadedModel]") -> dict[str, dict[str, str]]:
    """Return, by the models' names, the format of their weights here (`computed`) and in their files (`published`).

    Of a GGUF file it is the type of most of its matrices, which only some executors compute with. Heads and synthetic
    models state none.
    """
    formats = {}
    for name, model in models.items():
        published = _published_format(model.source)
        formats[name] = {"computed": _short(model.dtype), **({"published": published} if published else {})}
    return formats


def _published_format(source: ModelSource) -> str | None:
    """Return the format that the model's own files state: those of a folder in the way of `from_pretrained`."""
    if source.synthetic:
        return None
    # The folder of a converted GGUF file states the format of the conversion.
    if types := read_record(Path(source.location)).get("tensor_types"):
        # Norms and biases are float32 in nearly every file, and some models have more of these than of matrices.
        matrices = {name: count for name, count in types.items() if name != "F32"} or types
        return f"GGUF {max(matrices, key=matrices.__getitem__)}"
    try:
        config = read_config(source)
    except SkitError:
        return None
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return _short(stated) if stated else None


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
