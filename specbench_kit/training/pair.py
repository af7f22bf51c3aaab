"""Which pair of models a trace or predictor belongs to, told without loading the models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.bench.provenance import hash_model
from specbench_kit.errors import SkitError
from specbench_kit.models.catalogue import ModelSource, Role, locate
from specbench_kit.predictors.artefact import PairHashes
from specbench_kit.traces.trace import TraceFile


@dataclass(frozen=True, slots=True)
class PairIdentity:
    """Content hashes (hub models: commits) and the size of the shared vocabulary."""

    hashes: PairHashes
    vocabulary: int


def identify(target: str, draft: str) -> PairIdentity:
    """The pair that these names stand for."""
    roles: tuple[tuple[str, Role], ...] = ((target, "target"), (draft, "draft"))
    sources = [locate(name, role) for name, role in roles]
    configs = [_read_config(source) for source in sources]
    hashes = PairHashes(*(_hash(source, config) for source, config in zip(sources, configs, strict=True)))
    return PairIdentity(hashes, min(int(config.get_text_config().vocab_size) for config in configs))


def require_same_pair(trace: TraceFile, pair: PairHashes) -> None:
    """Refuse a trace that another pair was recorded with."""
    models = trace.header.run.get("models") or {}
    recorded = [models.get(role) or {} for role in ("target", "draft")]
    if [model.get("hash") for model in recorded] != [pair.target, pair.draft]:
        names = " and ".join(str(model.get("name", "an unnamed model")) for model in recorded)
        raise SkitError(
            f"the trace {trace.path} was recorded with other models ({names}): "
            "name them with --target and --draft, or record a trace with these"
        )


def _hash(source: ModelSource, config: Any) -> str:
    folder = Path(source.location)
    return hash_model(folder) if folder.is_dir() else str(config._commit_hash)


def _read_config(source: ModelSource) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source.location, local_files_only=source.local_only)
    except Exception as error:  # the loader lets through whatever hub client and parser raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SkitError(f"cannot load model '{source.label}': {reason}") from error
