"""The models that a name can stand for: bundled or named pairs, folders, GGUF files, hub ids.
Imports nothing heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_contents
from specbench_kit.core.hub import hub_reachable
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.models.gguf import SUFFIX, converted_folder, gguf_file, model_name
from specbench_kit.models.hub_cache import MAIN, HubModel, hub_id_of
from specbench_kit.models.named import (
    NAMED_PAIRS,
    NamedModel,
    NamedPair,
    Role,
    fetched_folder,
    installed_file,
    size_text,
)

AUTO = "auto"
"""The target that stands for the best pair which was fetched to this machine, or for the bundled
one without any.
"""
BUNDLED = "bundled"
SYNTHETIC = "synthetic"
"""A pair without weights whose models agree as often as the draft's options say."""
BUNDLED_FOLDER = Path(__file__).parent / "bundled"


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


SHAPE = "shape="


def shape_of(name: str) -> str:
    """Return the shapes that a synthetic model's name asks for; empty if it computes nothing."""
    options = name.partition(":")[2].split(",")
    return next((option.removeprefix(SHAPE) for option in options if option.startswith(SHAPE)), "")


def _without_folder(name: str) -> str:
    """Return a synthetic model's name as runs show it, where a file with shapes is only its
    name.
    """
    shape = shape_of(name)
    return (
        name.replace(f"{SHAPE}{shape}", f"{SHAPE}{Path(shape).stem}")
        if shape.endswith(".toml")
        else name
    )


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The origin of a model: `location` is a folder or a hub id, `label` the name that runs and
    reports show.
    """

    location: str
    label: str
    local_only: bool
    hub: HubModel | None = None
    """The model of the hub that this is; None for others."""

    @property
    def folder(self) -> Path:
        """Return the folder of the model, where its configuration is: for one of the hub, its
        snapshot in the cache.
        """
        return Path(self.location) if self.hub is None else self.hub.snapshot()

    def complete_folder(self, *, weights: bool) -> Path:
        """Return the folder of the model once its tokenizer and, on demand, its weights are on this
        machine.
        """
        if self.hub is None:
            return Path(self.location)
        return self.hub.with_weights() if weights else self.hub.with_tokenizer()

    @property
    def synthetic(self) -> bool:
        """Return whether the model is synthetic: made from options, without weights."""
        return self.location.partition(":")[0] == SYNTHETIC


def resolve_target(name: str) -> str:
    """Return the name that `auto` stands for: the first named pair that was fetched, else the
    bundled pair.
    """
    if name != AUTO:
        return name
    return next((pair.name for pair in NAMED_PAIRS.values() if pair.is_fetched), BUNDLED)


def locate(name: str, role: Role) -> ModelSource:
    """Turn a name, a folder, a GGUF file or a hub id into a source; anything else is an error of
    one line.
    """
    if role == "target":
        name = resolve_target(name)
    if name == BUNDLED:
        return ModelSource(str(BUNDLED_FOLDER / role), f"{BUNDLED}/{role}", local_only=True)
    if name.partition(":")[0] == SYNTHETIC:
        label = _without_folder(name)
        target = label.replace(SYNTHETIC, f"{SYNTHETIC}/target", 1)
        return ModelSource(name, target if role == "target" else label, local_only=True)
    if names_pair(name):
        return locate_named(NAMED_PAIRS[name], role)
    file = gguf_file(name)
    if file is not None:
        return ModelSource(str(converted_folder(file)), one_line(model_name(file)), local_only=True)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise SkitError(f"the folder '{name}' holds no model: config.json is missing")
        require_contents(folder)
        return ModelSource(
            str(folder), hub_id_of(folder) or one_line(folder.resolve().name), local_only=True
        )
    repository, marked, revision = name.partition("@")
    if (
        name.startswith((".", "/", "~"))
        or repository.count("/") != 1
        or bool(marked) != bool(revision)
    ):
        raise SkitError(
            f"no {role} model '{name}': give a folder, a GGUF file, a hub id like owner/name or owner/name@revision, "
            f"{', '.join(map(repr, NAMED_PAIRS))}, '{BUNDLED}' or '{SYNTHETIC}'"
        )
    return _on_hub(repository, name, revision or MAIN)


def locate_tokenizer(name: str) -> ModelSource:
    """Turn the name of a model, or a folder or hub id that holds a tokenizer alone, into a
    source.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return ModelSource(str(folder), one_line(folder.resolve().name), local_only=True)
    if name == BUNDLED or names_pair(name) or gguf_file(name) is not None:
        return locate(name, "target")
    repository, _, revision = name.partition("@")
    return _on_hub(repository, name, revision or MAIN, known_file="tokenizer_config.json")


def _on_hub(repository: str, label: str, revision: str = MAIN, **options: str) -> ModelSource:
    local_only = not hub_reachable()
    return ModelSource(
        repository, label, local_only, HubModel(repository, revision, local_only, **options)
    )


def names_pair(name: str) -> bool:
    """Return whether a name is that of a named pair, and not of a folder here that holds a
    model.
    """
    folder = Path(name)
    return name in NAMED_PAIRS and not (
        (folder / "config.json").is_file() or any(folder.glob(f"*{SUFFIX}"))
    )


def locate_named(pair: NamedPair, role: Role) -> ModelSource:
    """Return the source of a pair's model: fetched, in an installed package, or on the hub;
    SkitError if nowhere.
    """
    model = pair.model(role)
    if source := find_named(model):
        return source
    raise SkitError(
        f"the model '{model.name}' is not here: run `skit fetch {pair.name}` first ({size_text(pair.size_bytes)}, "
        f"{pair.licence})"
    )


def find_named(model: NamedModel) -> ModelSource | None:
    """Return the source of a named model: fetched, in an installed package, or in a repository of
    the hub.
    """
    folder = fetched_folder(model)
    if folder is None and (file := installed_file(model)) is not None:
        from specbench_kit.models.fetching import keep_installed

        folder = keep_installed(model, file)
    if folder is not None:
        return ModelSource(str(folder), model.name, local_only=True)
    # A repository of GGUF files is fetched first: it is no model that transformers would load.
    if not model.hub_file and (hub_reachable() or _is_cached(model.repository)):
        return _on_hub(model.repository, model.name)
    return None


def _is_cached(hub_id: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def read_config(source: ModelSource) -> Any:
    """Return the transformers configuration of a model without loading its weights."""
    from transformers import AutoConfig

    return _load(AutoConfig, source.label, source.folder)


def from_pretrained(
    factory: Any, source: ModelSource, *, weights: bool = False, **options: Any
) -> Any:
    """Load a tokenizer or, with its weights, a model by a transformers factory; code among the
    files never runs.
    """
    return _load(factory, source.label, source.complete_folder(weights=weights), **options)


def _load(factory: Any, label: str, folder: Path, **options: Any) -> Any:
    try:
        return factory.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # the loaders let through whatever hub client and file formats raise
        raise SkitError(f"cannot load model '{label}': {first_line(error)}") from error


class ListedModel(Struct):
    """A model of a pair that `skit list models` shows; its `sha256` is null if it is not known."""

    title: str
    repository: str
    size_bytes: int
    sha256: str | None


class ListedPair(Struct):
    """A pair that `skit list models` shows, with the folders of its models, null where they are not
    here.
    """

    name: str
    summary: str
    licence: str
    sources: Sequence[str]
    here: bool
    target: str | None
    draft: str | None
    models: list[ListedModel]


def entries() -> list[ListedPair]:
    """Return an entry per named pair: what it is, its sizes, licence and sources, and whether it is
    here.
    """
    return [_entry(pair) for pair in NAMED_PAIRS.values()]


def _entry(pair: NamedPair) -> ListedPair:
    sizes = " + ".join(f"{model.title} {size_text(model.size_bytes)}" for model in pair.models)
    state = "HERE" if pair.is_fetched else f"Not here: skit fetch {pair.name}"
    draft = (
        BUNDLED_FOLDER / pair.name / "draft" if pair.draft is None else fetched_folder(pair.draft)
    )
    return ListedPair(
        name=pair.name,
        summary=f"{pair.summary}. {sizes}; {pair.licence}; from {' or '.join(pair.sources)}. {state}.",
        licence=pair.licence,
        sources=pair.sources,
        here=pair.is_fetched,
        target=_folder(fetched_folder(pair.target)),
        draft=_folder(draft),
        models=[
            ListedModel(model.title, model.repository, model.size_bytes, model.sha256 or None)
            for model in pair.models
        ],
    )


def _folder(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)
