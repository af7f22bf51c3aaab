"""The predictor contract: a family learns from labelled examples and gives a scorer, which needs numpy alone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry

FEATURES = ("confidence", "entropy", "margin", "logit_std")
"""Draft-side statistics of a token, as `NodeStats` names them (WISP 4.2)."""
DRAFT_POSITION = "draft_position"
"""Optional fifth feature: place of the token in its draft, 1 for the first."""
ALL_FEATURES = (*FEATURES, DRAFT_POSITION)

Tensors = dict[str, NDArray[Any]]
Params = Mapping[str, Any]
Space = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Drafted tokens with what became of them; tokens after a round's first rejection are left out.

    `features` float32 [n, len(names)], `labels` bool [n] (True: accepted), `prompts` int [n] (index of the prompt,
    by which data are split), `positions` int [n] (draft position, 1 for the first).
    """

    features: NDArray[np.float32]
    labels: NDArray[np.bool_]
    prompts: NDArray[np.integer[Any]]
    positions: NDArray[np.integer[Any]]
    names: tuple[str, ...] = FEATURES

    def __post_init__(self) -> None:
        columns = (self.labels, self.prompts, self.positions)
        if self.features.shape != (len(self), len(self.names)) or any(c.shape != (len(self),) for c in columns):
            raise SkitError("examples: features, labels, prompts and positions differ in length")
        if not np.isfinite(self.features).all():
            raise SkitError("examples: a feature is not a finite number; record the trace again")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: "NDArray[np.integer[Any]] | NDArray[np.bool_]") -> "Examples":
        """The examples of these rows, by index or mask."""
        return Examples(
            self.features[rows], self.labels[rows], self.prompts[rows], self.positions[rows], names=self.names
        )

    def select(self, names: Sequence[str]) -> "Examples":
        """The same examples with these features, in this order; the draft position counts as one."""
        known = dict(zip(self.names, self.features.T, strict=True))
        columns = [known[name] if name in known else self._position(name) for name in names]
        features = np.stack(columns, axis=1).astype(np.float32)
        return Examples(features, self.labels, self.prompts, self.positions, tuple(names))

    def require_both_classes(self, role: str) -> None:
        """Refuse examples that are empty or all of one class."""
        accepted = int(self.labels.sum())
        if accepted in (0, len(self)):
            found = f"{accepted} accepted and {len(self) - accepted} rejected tokens"
            raise SkitError(
                f"the {role} examples hold {found}: both are needed; use more prompts or another draft model"
            )

    def _position(self, name: str) -> NDArray[np.integer[Any]]:
        if name != DRAFT_POSITION:
            raise SkitError(f"unknown feature '{name}'; known: {', '.join(ALL_FEATURES)}")
        return self.positions


class Scorer(ABC):
    """A trained classifier: the probability that the target accepts a token, nan where a feature is nan.

    Features come in the order that it was trained on.
    """

    scaler: "Scaler | None" = None
    """How features are standardised, where they are."""

    @abstractmethod
    def score(self, features: Sequence[float]) -> float:
        """Of one token: the fast path of the decoding loop."""

    @abstractmethod
    def score_many(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of tokens [n, features]; returns [n]."""

    @abstractmethod
    def to_tensors(self) -> Tensors:
        """Everything that `from_tensors` needs, all numbers finite."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Tensors, features: int) -> Self:
        """The scorer of that many features that `to_tensors` described; a ValueError says what is wrong."""


@dataclass(frozen=True, slots=True)
class Scaler:
    """Standardisation: (feature - mean) / scale, each [features] float64."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Self:
        """Mean and standard deviation of the training features; a constant feature keeps its scale."""
        wide = features.astype(np.float64)
        spread = wide.std(axis=0)
        return cls(wide.mean(axis=0), np.where(spread > 0, spread, 1.0))

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return (features - self.mean) / self.scale


class PredictorFamily(ABC):
    """One kind of classifier: its hyper-parameters and how it is trained."""

    summary: ClassVar[str]
    source: ClassVar[str]
    """Paper of the classifier itself."""
    space: ClassVar[Space]
    """Per hyper-parameter (WISP Table 9) the values to search, the default first."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Hyper-parameters that do well without a search."""
        return {name: values[0] for name, values in self.space.items()}

    def fit(self, train: Examples, valid: Examples, params: Params, seed: int) -> Scorer:
        """Train with `params` over the defaults, stopping early on validation log-loss; one result per seed."""
        for examples, role in ((train, "training"), (valid, "validation")):
            examples.require_both_classes(role)
        if train.names != valid.names:
            raise SkitError("training and validation examples have different features")
        if unknown := set(params) - set(self.space):
            raise SkitError(f"unknown hyper-parameter '{min(unknown)}'; known: {', '.join(self.space)}")
        return self.train(train, valid, {**self.defaults, **params}, seed)

    @abstractmethod
    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        """As `fit`, with everything checked and `params` complete."""

    @abstractmethod
    def scorer_type(self) -> type[Scorer]:
        """What `train` returns and an artefact is loaded as."""


families: Registry[type[PredictorFamily]] = Registry("predictor family", "specbench_kit.predictors")
