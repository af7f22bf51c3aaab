"""The pair of models that a trace or predictor belongs to, determined without loading the models."""

from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import ModelSource, locate, read_config
from specbench_kit.models.draft_library import find_draft
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs.provenance import hash_model
from specbench_kit.traces.trace import TraceFile


def identify(target: str, draft: str) -> PairHashes:
    """Return the content hashes of two models by name; for models of the hub, their commits."""
    source = locate(target, "target")
    return PairHashes(_hash(source), _hash(find_draft(draft, source)))


def require_same_pair(trace: TraceFile, pair: PairHashes) -> None:
    """Raise SkitError if the trace was recorded with another pair."""
    models = trace.header.run.get("models") or {}
    recorded = [models.get(role) or {} for role in ("target", "draft")]
    if [model.get("hash") for model in recorded] != [pair.target, pair.draft]:
        names = " and ".join(str(model.get("name", "an unnamed model")) for model in recorded)
        raise SkitError(
            f"the trace {trace.path} was recorded with other models ({names}): "
            "name them with --target and --draft, or record a trace with these"
        )


def _hash(source: ModelSource) -> str:
    if source.synthetic:
        return source.location
    folder = Path(source.location)
    return hash_model(folder) if folder.is_dir() else str(read_config(source)._commit_hash)
