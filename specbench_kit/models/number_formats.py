"""The number formats of a run's models: in which each computes, and in which it was published."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import ModelSource, read_config
from specbench_kit.models.gguf import gguf_checksum

if TYPE_CHECKING:
    from specbench_kit.models.pair import LoadedModel


def number_formats(models: "Mapping[str, LoadedModel]") -> dict[str, dict[str, str]]:
    """Return, by the models' names, the format of their weights here (`computed`) and in their files (`published`).

    Heads, synthetic models and models of GGUF files have no published one: their configurations state none, or that
    of a conversion.
    """
    formats = {}
    for name, model in models.items():
        published = _published_format(model.source)
        formats[name] = {"computed": _short(model.dtype), **({"published": published} if published else {})}
    return formats


def _published_format(source: ModelSource) -> str | None:
    """Return the format that the model's own configuration states, in which transformers loads it by default."""
    if source.synthetic or gguf_checksum(Path(source.location)):
        return None
    try:
        config = read_config(source)
    except SkitError:
        return None
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return _short(stated) if stated else None


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
