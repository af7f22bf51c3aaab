"""Model names: the bundled pair, local folders, hub ids. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path

from specbench_kit.errors import SkitError
from specbench_kit.hub import hub_reachable

BUNDLED = "bundled"
_FOLDER = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class BundledPair:
    """A pair that ships with the kit."""

    name: str
    target: Path
    draft: Path
    summary: str


def bundled_pairs() -> list[BundledPair]:
    """The pairs that need no download."""
    summary = "12-layer target and 1-layer draft, trained from scratch on GSM8K and general text"
    return [BundledPair(BUNDLED, _FOLDER / "target", _FOLDER / "draft", summary)]


def resolve_folder(name: str) -> tuple[str, bool]:
    """What to give to `from_pretrained`, and whether only local files may be used."""
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise SkitError(f"the folder '{name}' holds no model: config.json is missing")
        return name, True
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise SkitError(f"no model '{name}': give a folder, a hub id like owner/name, or '{BUNDLED}'")
    return name, not hub_reachable()


def resolve_names(target: str, draft: str) -> tuple[str, str]:
    """Folders for the word `bundled`, other names as they are."""
    pair = bundled_pairs()[0]
    return (str(pair.target) if target == BUNDLED else target, str(pair.draft) if draft == BUNDLED else draft)
