"""What `run.json` holds, as far as reports, comparisons and reruns rely on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.json_fields import Kind, shown

HINTS: Mapping[str, Any] = {
    **dict.fromkeys(("dataset", "models", "config", "hardware", "deployment", "versions", "left_out"), dict),
    **dict.fromkeys(("options", "uses", "prompts"), dict),
    **dict.fromkeys(("models.target", "models.draft", "imported", "trace"), dict),
    **dict.fromkeys(("method", "time_kind", "started_at", "git_commit"), str),
    **dict.fromkeys((f"dataset.{name}" for name in ("name", "source", "location", "digest")), str),
    **dict.fromkeys((f"models.{role}.{name}" for role in ("target", "draft") for name in ("name", "hash")), str),
    **dict.fromkeys(("config.device", "config.dtype", "hardware.cpu", "deployment.name"), str),
    "config.executors": dict,
    **dict.fromkeys((f"config.executors.{role}" for role in ("target", "draft")), str),
    **dict.fromkeys(("requests", "dataset.count", "dataset.total"), int),
    **dict.fromkeys((f"models.{role}.parameters" for role in ("target", "draft")), int),
    **dict.fromkeys((f"config.{name}" for name in ("max_new_tokens", "batch_size", "top_k", "seed", "repeats")), int),
    **dict.fromkeys(("config.temperature", "config.top_p", "hardware.memory_gb"), float),
    "resumptions": list[dict[str, Any]],
    **dict.fromkeys(("uses", "uses.predictor"), dict),
    "uses.predictor.threshold": float,
    **dict.fromkeys(("seen_prompts", "uses.predictor.max_draft"), int),
    **dict.fromkeys(("uses.predictor.deployment", "uses.predictor.rule"), str),
    "dataset.left_out": list[str],
    "argv": list[str],
}
"""The kind of every field that is read, by dotted name; each may be missing or null."""
KINDS = {name: Kind.of(hint, may_be_null=False) for name, hint in HINTS.items()}


def check(path: Path, run: Mapping[str, Any]) -> None:
    """Refuse a `run.json` with a field of a wrong kind."""
    for name, kind in KINDS.items():
        value = _get(run, name)
        if value is not None and not kind.holds(value):
            raise SkitError(f"{path}: {name} must be {kind}, not {shown(value)}: it is not a run of skit bench")
    if unknown := {name for name, model in (run.get("models") or {}).items() if not isinstance(model, dict | None)}:
        raise SkitError(f"{path}: models has '{min(unknown)}': it is not a run of skit bench")


def _get(run: Mapping[str, Any], name: str) -> Any:
    """The field of a dotted name; None where something on the way is missing or no object, which is an error itself."""
    found: Any = run
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found
