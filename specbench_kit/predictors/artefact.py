"""Predictors on disk: a folder with `predictor.json` and `weights.safetensors`; loading one runs no code from it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import RESERVED
from specbench_kit.predictors.base import ALL_FEATURES, DRAFT_POSITION, FEATURES, Scorer, Tensors, families
from specbench_kit.predictors.library import AGAIN, HEADER, SCHEMA, WEIGHTS, PairHashes, read_file, read_header
from specbench_kit.predictors.thresholds import (
    NEVER,
    PUBLISHED_RULE,
    DeploymentKey,
    ThresholdRule,
    TunedThreshold,
    closest_threshold,
    read_thresholds,
)


class Statistics(Protocol):
    """The draft-side statistics of one token, as `NodeStats` has them."""

    @property
    def confidence(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def margin(self) -> float: ...
    @property
    def logit_std(self) -> float: ...


def _describes_training(found: Any) -> bool:
    """Whether prompts, dataset and deployment can be read of it."""
    if not isinstance(found, Mapping):
        return False
    prompts, parts = found.get("prompts") or [], [found.get(name) or {} for name in ("dataset", "config")]
    if not isinstance(prompts, list) or not all(isinstance(part, Mapping) for part in parts):
        return False
    deployment = parts[1].get("deployment") or ""
    return all(isinstance(text, str) for text in (*prompts, deployment))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Predictor:
    """A scorer with its features, in order, and the threshold from which on a token counts as accepted.

    `operating_rule` says how the threshold was chosen, `training` where the examples came from and how the scorer
    was fitted, `metrics` how good it is; both are JSON objects. `created` is UTC in ISO 8601. Of the families that
    one training run gives, which share `created`, the `recommended` one is the default. `max_draft` is the longest
    draft that the threshold was chosen with. Judging a token takes `decision_s`, 0 where nobody measured it, and
    `decision_origin` says where and how that was found. `points` are those of every deployment that was tuned for, by
    rule; the predictor's own threshold is WISP's rule at the first.
    """

    family: str
    scorer: Scorer
    features: tuple[str, ...]
    threshold: float
    operating_rule: str
    pair: PairHashes
    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    recommended: bool = False
    created: str = field(default_factory=_now)
    max_draft: int = 8
    decision_s: float = 0.0
    decision_origin: str = ""
    points: tuple[TunedThreshold, ...] = ()

    def __post_init__(self) -> None:
        if not self.features or self.features != tuple(name for name in ALL_FEATURES if name in self.features):
            raise SkitError(f"a predictor's features are some of {', '.join(ALL_FEATURES)}, in this order")
        if not 0 <= self.threshold <= NEVER:
            raise SkitError(f"a predictor's threshold must lie in 0..1, not {self.threshold}")
        if not _describes_training(self.training):
            raise SkitError("what a predictor says of its training has not the form that 'skit train-predictor' gives")
        if not isinstance(self.max_draft, int) or self.max_draft < 1:
            raise SkitError(f"a predictor's longest draft must be a whole number from 1 up, not {self.max_draft}")
        if not (isinstance(self.decision_s, float) and 0 <= self.decision_s < inf):
            raise SkitError(f"a predictor's decision_s must be seconds from 0 up, not {self.decision_s}")
        if not isinstance(self.decision_origin, str):
            raise SkitError("a predictor's decision_origin must be a text")

    @property
    def prompts(self) -> frozenset[str]:
        """Fingerprints of the prompts that examples, threshold and figures came from; none where it is not known."""
        return frozenset(self.training.get("prompts") or ())

    @property
    def trained_on_reserved(self) -> bool:
        """Whether these are the part of a dataset that is reserved for training."""
        return (self.training.get("dataset") or {}).get("part") == RESERVED

    @property
    def deployment(self) -> str:
        """Whose time it was tuned for; `local` is the machine that recorded the trace."""
        return (self.training.get("config") or {}).get("deployment") or "local"

    def point(self, rule: ThresholdRule, place: DeploymentKey) -> TunedThreshold:
        """Where to stop by a rule at a place: what was chosen for both, or for what comes closest."""
        own = TunedThreshold(self.deployment, "", *PUBLISHED_RULE, threshold=self.threshold, max_draft=self.max_draft)
        return closest_threshold(self.points, rule, place, own)

    def score(self, stats: Statistics, place: int) -> float:
        """Probability that the target accepts the token at that place of its draft, 1 for the first."""
        features = [place if name == DRAFT_POSITION else getattr(stats, name) for name in self.features]
        return self.scorer.score(features)

    def score_chain(self, table: NDArray[Any]) -> list[float]:
        """Of all tokens of a chain, whose statistics are [tokens, 5] in the order of `NodeStats`."""
        scores: list[float] = self.score_chains(table[None])[0].tolist()
        return scores

    def score_chains(self, tables: NDArray[Any]) -> NDArray[np.float64]:
        """Of all tokens of several chains [chains, tokens, 5]: shape [chains, tokens]."""
        chains, tokens, _ = tables.shape
        places = np.broadcast_to(np.arange(1, tokens + 1), (chains, tokens))
        columns = [places if name == DRAFT_POSITION else tables[..., FEATURES.index(name)] for name in self.features]
        features = np.stack(columns, axis=-1).reshape(-1, len(columns)).astype(np.float32)
        return self.scorer.score_many(features).reshape(chains, tokens)


def save(folder: Path, predictor: Predictor) -> None:
    """Write an artefact, over an older one if there is one."""
    from safetensors.numpy import save as encode

    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in predictor.scorer.to_tensors().items()}
    weights = encode(tensors)
    fields = _header(predictor, _digest(weights))
    header = json.dumps({**fields, "sha256": _seal(fields)}, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in ((WEIGHTS, weights), (HEADER, f"{header}\n".encode())):
            part = folder / f"{name}.part"
            part.write_bytes(content)
            part.replace(folder / name)
    except OSError as error:
        raise SkitError(f"cannot write the predictor to {folder}: {error.strerror}") from error


def load(folder: Path, *, pair: PairHashes | None = None, force: bool = False) -> Predictor:
    """Read an artefact; one that was trained for another pair than `pair` is refused unless forced."""
    try:
        header = read_header(folder)
        if header.pop("sha256") != _seal(header):
            raise ValueError(f"{HEADER} was changed (its SHA-256 is not the recorded one); {AGAIN}")
        trained_for = PairHashes(**header["pair"])
        if pair is not None and pair != trained_for and not force:
            raise ValueError(f"it was trained for another pair of models; {AGAIN}, or add force=true to use it anyway")
        return _predictor(header, _restore(header, read_file(folder / WEIGHTS)), trained_for)
    except (KeyError, TypeError) as error:
        reason = f"{HEADER} lacks or garbles a field ({error}); {AGAIN}"
        raise SkitError(f"the predictor {folder} cannot be used: {reason}") from error
    except (SkitError, ValueError) as error:
        raise SkitError(f"the predictor {folder} cannot be used: {error}") from error


def _header(predictor: Predictor, weights_sha256: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "family": predictor.family,
        "features": list(predictor.features),
        "scaler": _scaler(predictor.scorer),
        "threshold": predictor.threshold,
        "max_draft": predictor.max_draft,
        "operating_rule": predictor.operating_rule,
        "points": [asdict(point) for point in predictor.points],
        "decision_s": predictor.decision_s,
        "decision_origin": predictor.decision_origin,
        "pair": asdict(predictor.pair),
        "recommended": predictor.recommended,
        "created": predictor.created,
        "training": dict(predictor.training),
        "metrics": dict(predictor.metrics),
        "weights_sha256": weights_sha256,
    }


def _scaler(scorer: Scorer) -> dict[str, list[float]] | None:
    scaler = scorer.scaler
    return None if scaler is None else {"mean": scaler.mean.tolist(), "scale": scaler.scale.tolist()}


def _restore(header: dict[str, Any], weights: bytes) -> Scorer:
    """The scorer whose weights these are, once everything about them is as recorded."""
    if _digest(weights) != header["weights_sha256"]:
        raise ValueError(f"{WEIGHTS} was cut short or changed (its SHA-256 is not the recorded one); {AGAIN}")
    scorer_type = families.get(header["family"])().scorer_type()
    scorer = scorer_type.from_tensors(_decode(weights), len(header["features"]))
    if _scaler(scorer) != header["scaler"]:
        raise ValueError(f"the scaler in {HEADER} is not that of the weights; {AGAIN}")
    return scorer


def _decode(weights: bytes) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    try:
        return decode(weights)
    except SafetensorError as error:
        raise ValueError(f"{WEIGHTS} is not a safetensors file ({error})") from error


def _predictor(header: dict[str, Any], scorer: Scorer, pair: PairHashes) -> Predictor:
    datetime.fromisoformat(header["created"])
    copied = ("family", "operating_rule", "training", "metrics", "recommended", "created", "max_draft")
    fields = {name: header[name] for name in copied}
    # Those that older versions do not write.
    fields |= {name: header[name] for name in ("decision_s", "decision_origin") if name in header}
    fields["points"] = read_thresholds(header.get("points", ()))
    return Predictor(
        scorer=scorer, features=tuple(header["features"]), threshold=header["threshold"], pair=pair, **fields
    )


def _seal(fields: Mapping[str, Any]) -> str:
    """SHA-256 of a header's fields, however they are laid out."""
    return _digest(json.dumps(fields, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
