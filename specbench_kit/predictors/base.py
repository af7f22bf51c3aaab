"""The predictor contract: a family trains on labelled examples and returns a scorer, which needs
only numpy.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.core.extras import missing_module_line
from specbench_kit.core.registry import Registry

FEATURES = ("confidence", "entropy", "margin", "logit_std")
"""Draft-side statistics of a token, as `NodeStats` names them (WISP 4.2)."""
DRAFT_POSITION = "draft_position"
"""Optional fifth feature: position of the token in its draft, 1 for the first."""
ALL_FEATURES = (*FEATURES, DRAFT_POSITION)

Tensors = dict[str, NDArray[Any]]
Params = Mapping[str, Any]
Space = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Drafted tokens labelled as accepted or rejected; tokens after a round's first rejection are
    left out.

    `features` float32 [n, len(names)], `labels` bool [n] (True: accepted), `prompts` int [n] (index of the prompt,
    by which data are split), `positions` int [n] (draft position, 1 for the first).
    """

    features: NDArray[np.float32]
    labels: NDArray[np.bool_]
    prompts: NDArray[np.integer]
    positions: NDArray[np.integer]
    names: tuple[str, ...] = FEATURES

    def __post_init__(self) -> None:
        columns = (self.labels, self.prompts, self.positions)
        if self.features.shape != (len(self), len(self.names)) or any(
            c.shape != (len(self),) for c in columns
        ):
            raise SkitError("examples: features, labels, prompts and positions differ in length")
        if not np.isfinite(self.features).all():
            raise SkitError("examples: a feature is not a finite number; record the trace again")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: "NDArray[np.integer] | NDArray[np.bool_]") -> "Examples":
        """Return the examples of some rows, given by index or mask."""
        return Examples(
            self.features[rows],
            self.labels[rows],
            self.prompts[rows],
            self.positions[rows],
            names=self.names,
        )

    def select(self, names: Sequence[str]) -> "Examples":
        """Return these examples with other features, in the order of `names`; the draft position
        counts as one.
        """
        columns = dict(zip(self.names, self.features.T, strict=True)) | {
            DRAFT_POSITION: self.positions
        }
        unknown = [name for name in names if name not in columns]
        if unknown:
            raise SkitError(f"unknown feature '{unknown[0]}'; known: {', '.join(ALL_FEATURES)}")
        features = np.stack([columns[name] for name in names], axis=1).astype(np.float32)
        return Examples(features, self.labels, self.prompts, self.positions, tuple(names))

    def require_both_classes(self, role: str) -> None:
        """Raise SkitError if the examples are empty or all of one class."""
        accepted = int(self.labels.sum())
        if accepted in (0, len(self)):
            counts = f"{accepted} accepted and {len(self) - accepted} rejected tokens"
            raise SkitError(
                f"the {role} examples hold {counts}: both are needed; use more prompts or another draft model"
            )


class Scorer(ABC):
    """A trained classifier that scores tokens: the probability that the target accepts them, nan if
    a feature is nan.

    Features have the order of the training.
    """

    scaler: "Scaler | None" = None
    """The standardisation of the features; None if there is none."""

    @abstractmethod
    def score(self, features: Sequence[float]) -> float:
        """Return the score of one token; this is the fast path of the decoding loop."""

    @abstractmethod
    def score_many(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the scores [n] of tokens [n, features]."""

    @abstractmethod
    def to_tensors(self) -> Tensors:
        """Return the tensors that `from_tensors` needs, with finite numbers only."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Tensors, features: int) -> Self:
        """Return the scorer of the tensors, with `features` features; raise ValueError if they do
        not fit together.
        """


@dataclass(frozen=True, slots=True)
class Scaler:
    """The standardisation (feature - mean) / scale, with `mean` and `scale` of shape [features] in
    float64.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Self:
        """Return the scaler of the features' mean and standard deviation; a constant feature has
        scale 1.
        """
        wide = features.astype(np.float64)
        spread = wide.std(axis=0)
        return cls(wide.mean(axis=0), np.where(spread > 0, spread, 1.0))

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return (features - self.mean) / self.scale


class PredictorFamily(ABC):
    """One kind of classifier, with its hyper-parameters and its training."""

    summary: ClassVar[str]
    source: ClassVar[str]
    """The paper of the classifier itself."""
    space: ClassVar[Space]
    """The values to search for each hyper-parameter (WISP Table 9), the default first."""
    package: ClassVar[str | None] = None
    """The Python module of an extra that training needs; scoring needs none."""

    @property
    def missing_package(self) -> str | None:
        """Return the line that says how to install what training needs; None if it is there."""
        if self.package is None or find_spec(self.package) is not None:
            return None
        return missing_module_line(self.package)

    @property
    def defaults(self) -> Params:
        """Return hyper-parameters that do well without a search."""
        return {name: values[0] for name, values in self.space.items()}

    def fit(self, train: Examples, valid: Examples, params: Params, seed: int) -> Scorer:
        """Train with `params` over the defaults, with early stopping on validation log-loss; a seed
        gives one result.

        Raise SkitError for unsuitable examples or an unknown hyper-parameter.
        """
        for examples, role in ((train, "training"), (valid, "validation")):
            examples.require_both_classes(role)
        if train.names != valid.names:
            raise SkitError("training and validation examples have different features")
        if unknown := set(params) - set(self.space):
            raise SkitError(
                f"unknown hyper-parameter '{min(unknown)}'; known: {', '.join(self.space)}"
            )
        return self.train(train, valid, {**self.defaults, **params}, seed)

    @abstractmethod
    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        """Train with complete hyper-parameters on checked examples; `fit` calls this."""

    @abstractmethod
    def scorer_type(self) -> type[Scorer]:
        """Return the class of the scorers that `train` returns and that artefacts are loaded as."""


families: Registry[type[PredictorFamily]] = Registry("predictor family", "specbench_kit.predictors")
