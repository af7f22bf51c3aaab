"""Model names: the bundled pair, named models, local folders, GGUF files, hub ids. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specbench_kit.core.errors import SkitError
from specbench_kit.core.hub import hub_reachable
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.models.gguf import converted_folder, gguf_file, model_name
from specbench_kit.models.named import NAMED_MODELS, NamedModel, fetch, fetched_folder, installed_file

BUNDLED = "bundled"
SYNTHETIC = "synthetic"
"""A pair without weights whose models agree as often as the draft's options say."""
BUNDLED_FOLDER = Path(__file__).parent / "bundled"

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class BundledPair:
    """A pair that ships with the kit."""

    name: str
    target: Path
    draft: Path
    summary: str


def bundled_pairs() -> list[BundledPair]:
    """Return the pairs that need no download."""
    summary = "Llama-architecture, 12-layer target and 1-layer draft, trained from scratch on GSM8K and general text"
    return [BundledPair(BUNDLED, BUNDLED_FOLDER / "target", BUNDLED_FOLDER / "draft", summary)]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The origin of a model: `location` is a folder or a hub id, `label` the name that runs and reports show."""

    location: str
    label: str
    local_only: bool

    @property
    def synthetic(self) -> bool:
        """Return whether the model is synthetic: made from options, without weights."""
        return self.location.partition(":")[0] == SYNTHETIC


def locate(name: str, role: Role) -> ModelSource:
    """Turn a name, a folder, a GGUF file or a hub id into a source; anything else is an error of one line."""
    if name == BUNDLED:
        return ModelSource(str(BUNDLED_FOLDER / role), f"{BUNDLED}/{role}", local_only=True)
    if name in NAMED_MODELS:
        return _locate_named(NAMED_MODELS[name])
    if name.partition(":")[0] == SYNTHETIC:
        return ModelSource(name, f"{SYNTHETIC}/target" if role == "target" else name, local_only=True)
    file = gguf_file(name)
    if file is not None:
        return ModelSource(str(converted_folder(file)), one_line(model_name(file)), local_only=True)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise SkitError(f"the folder '{name}' holds no model: config.json is missing")
        return ModelSource(str(folder), one_line(folder.resolve().name), local_only=True)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise SkitError(
            f"no {role} model '{name}': give a folder, a GGUF file, a hub id like owner/name, "
            f"{', '.join(map(repr, NAMED_MODELS))}, '{BUNDLED}' or '{SYNTHETIC}'"
        )
    return ModelSource(name, name, local_only=not hub_reachable())


def _locate_named(model: NamedModel) -> ModelSource:
    """Find a named model: in the user's folder, in an installed package, else in the hub's cache or on the hub."""
    folder = fetched_folder(model)
    if folder is None and installed_file(model) is not None:
        folder = fetch(model, lambda _: None)
    if folder is not None:
        return ModelSource(str(folder), model.name, local_only=True)
    if hub_reachable() or _is_cached(model.hub_id):
        return ModelSource(model.hub_id, model.name, local_only=not hub_reachable())
    raise SkitError(f"the model '{model.name}' is not here: run `skit fetch {model.name}` first ({model.summary})")


def _is_cached(hub_id: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def read_config(source: ModelSource) -> Any:
    """Return the transformers configuration of a model without loading its weights."""
    from transformers import AutoConfig

    return from_pretrained(AutoConfig, source)


def from_pretrained(factory: Any, source: ModelSource, **options: Any) -> Any:
    """Load with a transformers factory, without ever running code that lies among the model's files."""
    try:
        return factory.from_pretrained(
            source.location, local_files_only=source.local_only, trust_remote_code=False, **options
        )
    except Exception as error:  # the loaders let through whatever hub client and file formats raise
        raise SkitError(f"cannot load model '{source.label}': {first_line(error)}") from error
