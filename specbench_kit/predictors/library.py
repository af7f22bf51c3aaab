"""Which predictors there are: bundled with the kit, and the user's own. Imports nothing heavy."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.user_data import user_folder

SCHEMA = 1
BUNDLED = Path(__file__).parent / "bundled"
HEADER, WEIGHTS = "predictor.json", "weights.safetensors"
AGAIN = "train it again with 'skit train-predictor'"


@dataclass(frozen=True, slots=True)
class PairHashes:
    """The models that a predictor belongs to, by content hash (hub models: commit)."""

    target: str
    draft: str

    @property
    def short(self) -> str:
        """Part of a folder's name."""
        return f"{self.target[:12]}-{self.draft[:12]}"


def data_folder() -> Path:
    """The user's predictors."""
    return user_folder("predictors")


def default_folder(pair: PairHashes, family: str) -> Path:
    """Where a predictor trained for this pair goes unless told otherwise."""
    return data_folder() / f"{family}-{pair.short}"


def find(pair: PairHashes, wanted: str | None = None) -> list[Path]:
    """Folders of the predictors for a pair, the best choice first; `wanted` is a family or a folder's name.

    The user's own come before those that are bundled, newer ones before older ones, and of one training run the
    recommended one first. A folder that is named after the pair but cannot be read comes last, for `load` to say why.
    """
    ranked = [(rank, folder) for folder in _folders() if (rank := _rank(folder, pair, wanted)) is not None]
    return [folder for _, folder in sorted(ranked, key=lambda item: item[0], reverse=True)]


def read_header(folder: Path) -> dict[str, Any]:
    """The JSON object of this schema; a ValueError says what is wrong."""
    try:
        header = json.loads(read_file(folder / HEADER))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{HEADER} is not JSON: it was cut short or changed; {AGAIN}") from error
    if not isinstance(header, dict) or not isinstance(header.get("schema"), int) or "weights_sha256" not in header:
        raise ValueError(f"{HEADER} is not a predictor of this kit: name a folder that 'skit train-predictor' wrote")
    if header["schema"] != SCHEMA:
        raise ValueError(f"it has schema {header['schema']}, this kit reads {SCHEMA}: update specbench-kit")
    return header


def read_file(path: Path) -> bytes:
    """A file's content; a ValueError says what is wrong."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{path.name} is missing; {AGAIN}") from error
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


def entries() -> list[dict[str, Any]]:
    """What `skit list predictors` says of each; of one that cannot be used only its name, folder and why."""
    return [_entry(folder) for folder in _folders()]


def _folders() -> Iterator[Path]:
    for root in (data_folder(), BUNDLED):
        yield from (header.parent for header in sorted(root.glob(f"*/{HEADER}")))


def _rank(folder: Path, pair: PairHashes, wanted: str | None) -> tuple[bool, bool, str, bool] | None:
    """What a folder is sorted by, or None where it is for another pair or not wanted."""
    is_own = folder.parent != BUNDLED
    try:
        header = read_header(folder)
    except ValueError:
        named_so = folder.name == wanted or _is_default_name(folder.name, pair, wanted)
        return (False, is_own, "", False) if named_so else None
    if header.get("pair") != asdict(pair) or wanted not in (None, header.get("family"), folder.name):
        return None
    return True, is_own, str(header.get("created")), bool(header.get("recommended"))


def _is_default_name(name: str, pair: PairHashes, family: str | None) -> bool:
    return name.endswith(f"-{pair.short}") and (family is None or name == f"{family}-{pair.short}")


def _entry(folder: Path) -> dict[str, Any]:
    place = {"name": folder.name, "bundled": folder.parent == BUNDLED, "folder": str(folder)}
    try:
        header = read_header(folder)
        shown = ("family", "pair", "recommended", "created", "features", "threshold", "max_draft", "operating_rule")
        details = {key: header[key] for key in shown}
        details |= {"auc": header["metrics"]["classification"]["auc"], "models": _models(header)}
        summary = _summary(details, is_bundled=bool(place["bundled"]))
    except ValueError as error:
        return {**place, "summary": f"cannot be used: {error}"}
    except (KeyError, TypeError, AttributeError) as error:
        return {**place, "summary": f"cannot be used: {HEADER} lacks or garbles a field ({error}); {AGAIN}"}
    return {"name": place["name"], "summary": summary, **details, **place}


def _models(header: dict[str, Any]) -> dict[str, str]:
    return {role: str(model["name"]) for role, model in header["training"]["models"].items()}


def _summary(details: dict[str, Any], *, is_bundled: bool) -> str:
    models = details["models"]
    parts = [
        f"{details['family']} for {models['target']} with {models['draft']}",
        "bundled" if is_bundled else f"trained {details['created'][:10]}",
        f"AUC {details['auc']:.3f}",
        f"drafts of up to {details['max_draft']}",
    ]
    return ", ".join(parts) + (", recommended" if details["recommended"] else "")
