"""The named pairs as `skit list models` shows them. Imports nothing heavy."""

from pathlib import Path
from typing import Any

from specbench_kit.models.catalogue import BUNDLED_FOLDER
from specbench_kit.models.named import NAMED_PAIRS, NamedModel, NamedPair, fetched_folder, size_text


def entries() -> list[dict[str, Any]]:
    """Return an entry per named pair: what it is, its sizes, licence and sources, and whether it is here."""
    return [_entry(pair) for pair in NAMED_PAIRS.values()]


def _entry(pair: NamedPair) -> dict[str, Any]:
    sizes = " + ".join(f"{model.title} {size_text(model.size_bytes)}" for model in pair.models)
    state = "HERE" if pair.is_fetched else f"Not here: skit fetch {pair.name}"
    draft = BUNDLED_FOLDER / pair.name / "draft" if pair.draft is None else fetched_folder(pair.draft)
    return {
        "name": pair.name,
        "summary": f"{pair.summary}. {sizes}; {pair.licence}; from {' or '.join(pair.sources)}. {state}.",
        "licence": pair.licence,
        "sources": pair.sources,
        "here": pair.is_fetched,
        "target": _folder(fetched_folder(pair.target)),
        "draft": _folder(draft),
        "models": [_describe(model) for model in pair.models],
    }


def _describe(model: NamedModel) -> dict[str, Any]:
    return {
        "title": model.title,
        "repository": model.repository,
        "size_bytes": model.size_bytes,
        "sha256": model.sha256 or None,
    }


def _folder(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)
