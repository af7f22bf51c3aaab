"""The scorer of fully connected networks; one without hidden layers is logistic regression."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.base import Scaler, Scorer, Tensors

Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weight [out, in] and bias [out]."""


class Dense(Scorer):
    """A network of standardisation and layers with ReLU between them; its single output is the
    log-odds.
    """

    def __init__(self, scaler: Scaler, layers: Sequence[Layer]) -> None:
        self.scaler = scaler
        self.layers = list(layers)
        # Standardisation is folded into the first layer: it then costs nothing per token.
        (weight, bias), *others = self.layers
        folded = weight / scaler.scale
        *self._hidden, (last, last_bias) = [(folded, bias - folded @ scaler.mean), *others]
        self._last = last[0]
        self._last_bias = float(last_bias[0])

    def score(self, features: Sequence[float]) -> float:
        row = np.array(features, np.float64)
        for weight, bias in self._hidden:
            row = np.maximum(weight.dot(row) + bias, 0.0)
        return logistic(float(self._last.dot(row)) + self._last_bias)

    def score_many(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        rows = features.astype(np.float64)
        for weight, bias in self._hidden:
            rows = np.maximum(rows @ weight.T + bias, 0.0)
        return logistic_of(rows @ self._last + self._last_bias)

    def to_tensors(self) -> Tensors:
        assert self.scaler is not None
        tensors: Tensors = {"mean": self.scaler.mean, "scale": self.scaler.scale}
        for index, (weight, bias) in enumerate(self.layers):
            tensors |= {f"weight_{index}": weight, f"bias_{index}": bias}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Tensors, features: int) -> Self:
        count = (len(tensors) - 2) // 2
        expected = {"mean", "scale"} | {
            f"{kind}_{index}" for index in range(count) for kind in ("weight", "bias")
        }
        if count < 1 or set(tensors) != expected:
            raise ValueError(f"unexpected tensors {', '.join(sorted(tensors)) or '(none)'}")
        layers = [(tensors[f"weight_{index}"], tensors[f"bias_{index}"]) for index in range(count)]
        _check(layers, tensors["mean"], tensors["scale"], features)
        return cls(Scaler(tensors["mean"], tensors["scale"]), layers)


def _check(
    layers: Sequence[Layer], mean: NDArray[np.float64], scale: NDArray[np.float64], features: int
) -> None:
    tensors = [mean, scale, *(tensor for layer in layers for tensor in layer)]
    if any(tensor.dtype != np.float64 or not np.isfinite(tensor).all() for tensor in tensors):
        raise ValueError("a weight is not a finite float64 number")
    if mean.shape != (features,) or scale.shape != (features,) or not (scale > 0).all():
        raise ValueError("the scaler does not fit the features")
    widths = [features, *(len(np.atleast_1d(bias)) for _, bias in layers)]
    fits = [
        w.shape == (n, m) and b.shape == (n,)
        for (m, n), (w, b) in zip(pairwise(widths), layers, strict=True)
    ]
    if not all(fits) or widths[-1] != 1:
        raise ValueError("the layers do not fit together")


def logistic(log_odds: float) -> float:
    """Return the probability of some log-odds; the tanh form overflows nowhere."""
    return 0.5 + 0.5 * math.tanh(0.5 * log_odds)


def logistic_of(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of an array of log-odds."""
    probabilities: NDArray[np.float64] = 0.5 + 0.5 * np.tanh(0.5 * log_odds)
    return probabilities
