"""Predictors on disk: a folder with `predictor.json` and `weights.safetensors`; loading one runs no
code from it.
"""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import structs, to_builtins
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.files import replace_file
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.base import RESERVED
from specbench_kit.predictors.base import ALL_FEATURES, DRAFT_POSITION, FEATURES, Scorer, families
from specbench_kit.predictors.library import (
    HEADER,
    SCHEMA,
    TRAIN_AGAIN,
    WEIGHTS,
    CalibrationMetrics,
    Facts,
    HeaderDocument,
    PairHashes,
    PredictorHeader,
    ScalerHeader,
    TrainingOrigin,
    parse_header,
    read_document,
    read_file,
)
from specbench_kit.predictors.thresholds import (
    LOCAL,
    NEVER,
    PUBLISHED_RULE,
    DeploymentKey,
    ThresholdRule,
    TunedThreshold,
    closest_threshold,
)


class DraftStatistics(Protocol):
    """The draft-side statistics of one token, as `NodeStats` has them."""

    @property
    def confidence(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def margin(self) -> float: ...
    @property
    def logit_std(self) -> float: ...


@dataclass(frozen=True)
class Predictor:
    """A scorer with its features, in order, and the threshold from which on a token counts as
    accepted.

    `operating_rule` names the rule that chose the threshold. `training` describes the examples and the fit, `metrics`
    the quality; both are JSON objects. `created` is UTC in ISO 8601. Of the families that one training run gives, which
    share `created`, the `recommended` one is the default. `max_draft` is the longest draft, in tokens, that the
    threshold was tuned with. `decision_s` is the time to judge one token, in seconds, 0 if it was not measured, and
    `decision_origin` says how it was measured. `tuned` holds the thresholds for every deployment and rule that was
    tuned for; `threshold` is the one of WISP's rule in the first deployment. `sha256` is the hash of its header and
    weights as they were loaded, empty if it comes from no folder. `choice` says which one it is and why it was taken.
    """

    family: str
    scorer: Scorer
    features: tuple[str, ...]
    threshold: float
    operating_rule: str
    pair: PairHashes
    training: Facts = field(default_factory=dict)
    metrics: Facts = field(default_factory=dict)
    recommended: bool = False
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    max_draft: int = 8
    decision_s: float = 0.0
    decision_origin: str = ""
    tuned: tuple[TunedThreshold, ...] = ()
    sha256: str = field(default="", compare=False)
    choice: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(name for name in ALL_FEATURES if name in self.features)
        require(
            bool(self.features) and self.features == ordered,
            f"a predictor's features are some of {', '.join(ALL_FEATURES)}, in this order",
        )
        require(
            0 <= self.threshold <= NEVER,
            f"a predictor's threshold must lie in 0..1, not {self.threshold:g}",
        )
        require(
            self.max_draft >= 1,
            f"a predictor's max_draft must be a whole number from 1 up, not {self.max_draft}",
        )
        measured = 0 <= self.decision_s < inf
        require(
            measured, f"a predictor's decision_s must be seconds from 0 up, not {self.decision_s}"
        )
        self._origin()

    def _origin(self) -> TrainingOrigin:
        try:
            return convert(TrainingOrigin, dict(self.training))
        except ValueError as error:
            raise SkitError(
                f"a predictor's training has not the form that 'skit train-predictor' gives: {error}"
            ) from None

    @property
    def prompts(self) -> frozenset[str]:
        """Return the fingerprints of the prompts that it was trained and evaluated on; empty if
        unknown.
        """
        return frozenset(self._origin().prompts or ())

    @property
    def trained_on_reserved(self) -> bool:
        """Return True if those prompts are the part of a dataset that is reserved for training."""
        dataset = self._origin().dataset
        return dataset is not None and dataset.part == RESERVED

    @property
    def deployment(self) -> str:
        """Return the deployment that it was tuned for; `local` is the machine that recorded the
        trace.
        """
        config = self._origin().config
        return (config.deployment if config else None) or LOCAL

    @property
    def calibration_error(self) -> float | None:
        """Return the expected calibration error of its scores, 0 to 1; None if it was not
        measured.
        """
        classification = convert(CalibrationMetrics, dict(self.metrics)).classification
        return classification.expected_calibration_error if classification else None

    def threshold_at(self, rule: ThresholdRule, deployment: DeploymentKey) -> TunedThreshold:
        """Return the threshold that was tuned for a rule in a deployment, or in the closest one."""
        own = TunedThreshold(
            self.deployment, "", *PUBLISHED_RULE, threshold=self.threshold, max_draft=self.max_draft
        )
        return closest_threshold(self.tuned, rule, deployment, own)

    def score(self, stats: DraftStatistics, place: int) -> float:
        """Return the probability that the target accepts the token at position `place` of its
        draft, from 1.
        """
        features = [
            place if name == DRAFT_POSITION else getattr(stats, name) for name in self.features
        ]
        return self.scorer.score(features)

    def score_chain(self, table: NDArray[np.floating]) -> list[float]:
        """Return the scores of all tokens of a chain, from their statistics [tokens, 5] in the
        order of `NodeStats`.
        """
        scores: list[float] = self.score_chains(table[None])[0].tolist()
        return scores

    def score_chains(self, tables: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the scores [chains, tokens] of several chains, from their statistics [chains,
        tokens, 5].
        """
        chains, tokens, _ = tables.shape
        positions = np.broadcast_to(np.arange(1, tokens + 1), (chains, tokens))
        columns = [
            positions if name == DRAFT_POSITION else tables[..., FEATURES.index(name)]
            for name in self.features
        ]
        features = np.stack(columns, axis=-1).reshape(-1, len(columns)).astype(np.float32)
        return self.scorer.score_many(features).reshape(chains, tokens)


def save(folder: Path, predictor: Predictor) -> None:
    """Write a predictor into a folder, over an older one if there is one; raise SkitError if that
    fails.
    """
    from safetensors.numpy import save as encode

    tensors = {
        name: np.ascontiguousarray(tensor) for name, tensor in predictor.scorer.to_tensors().items()
    }
    weights = encode(tensors)
    header = PredictorHeader(
        schema=SCHEMA,
        family=predictor.family,
        features=predictor.features,
        scaler=_scaler(predictor.scorer),
        threshold=predictor.threshold,
        max_draft=predictor.max_draft,
        operating_rule=predictor.operating_rule,
        points=predictor.tuned,
        decision_s=predictor.decision_s,
        decision_origin=predictor.decision_origin,
        pair=predictor.pair,
        recommended=predictor.recommended,
        created=predictor.created,
        training=dict(predictor.training),
        metrics=dict(predictor.metrics),
        weights_sha256=_digest(weights),
        sha256="",
    )
    document = {**structs.asdict(header), "sha256": _seal(structs.asdict(header))}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=to_builtins)
    try:
        replace_file(folder / WEIGHTS, weights)
        replace_file(folder / HEADER, f"{text}\n".encode())
    except OSError as error:
        raise SkitError(f"cannot write the predictor to {folder}: {error.strerror}") from error


def load(folder: Path, *, pair: PairHashes | None = None, force: bool = False) -> Predictor:
    """Return the predictor of a folder; raise SkitError if it is damaged or was trained for another
    pair than `pair`.

    `force` accepts a predictor of another pair.
    """
    try:
        document = read_document(folder)
        header = parse_header(document)
        if header.sha256 != _seal(document):
            raise ValueError(
                f"{HEADER} was changed (its SHA-256 is not the recorded one); {TRAIN_AGAIN}"
            )
        if pair is not None and pair != header.pair and not force:
            raise ValueError(
                f"it was trained for another pair of models; {TRAIN_AGAIN}, or add force=true to use it anyway"
            )
        datetime.fromisoformat(header.created)
        return Predictor(
            family=header.family,
            scorer=_restore(header, read_file(folder / WEIGHTS)),
            features=header.features,
            threshold=header.threshold,
            operating_rule=header.operating_rule,
            pair=header.pair,
            training=header.training,
            metrics=header.metrics,
            recommended=header.recommended,
            created=header.created,
            max_draft=header.max_draft,
            decision_s=header.decision_s,
            decision_origin=header.decision_origin,
            tuned=header.points,
            sha256=header.sha256,
        )
    except (SkitError, ValueError) as error:
        raise SkitError(f"the predictor {folder} cannot be used: {error}") from error


def _scaler(scorer: Scorer) -> ScalerHeader | None:
    scaler = scorer.scaler
    return None if scaler is None else ScalerHeader(scaler.mean.tolist(), scaler.scale.tolist())


def _restore(header: PredictorHeader, weights: bytes) -> Scorer:
    """Return the scorer of a header and its weights; raise ValueError if they do not belong
    together.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    if _digest(weights) != header.weights_sha256:
        raise ValueError(
            f"{WEIGHTS} was cut short or changed (its SHA-256 is not the recorded one); {TRAIN_AGAIN}"
        )
    try:
        tensors = decode(weights)
    except SafetensorError as error:
        raise ValueError(f"{WEIGHTS} is not a safetensors file ({error})") from error
    scorer = families.get(header.family)().scorer_type().from_tensors(tensors, len(header.features))
    if _scaler(scorer) != header.scaler:
        raise ValueError(f"the scaler in {HEADER} is not that of the weights; {TRAIN_AGAIN}")
    return scorer


def _seal(document: HeaderDocument) -> str:
    """Return the SHA-256 of a header's fields without `sha256`, whatever their layout in the
    file.
    """
    fields = {name: value for name, value in document.items() if name != "sha256"}
    return _digest(json.dumps(fields, sort_keys=True, default=to_builtins).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
