"""Statistics of a draft forward's distributions, if the executor has not computed them on the way."""

from math import log, sqrt
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def features_of_row(logits: NDArray[Any], probabilities: NDArray[Any], temperature: float) -> list[float]:
    """Return confidence, entropy, margin and logit_std of one row [vocabulary], fast enough for every drafted token.

    With p = softmax(logits / temperature), whether or not it was cut to some tokens, the entropy is
    (logit of the best - mean logit under p) / temperature - log p(best), which needs no logarithm of every p.
    """
    best = int(probabilities.argmax())
    confidence = float(probabilities[best])
    without_best = probabilities.copy()
    without_best[best] = 0.0
    entropy = float(logits[best] - probabilities.dot(logits)) / temperature - log(confidence)
    centred = logits - logits.mean()
    logit_std = sqrt(float(centred.dot(centred)) / len(logits))
    return [confidence, max(entropy, 0.0), confidence - float(without_best.max()), logit_std]


def features_of_rows(logits: Tensor, probabilities: Tensor) -> list[list[float]]:
    """Return confidence, entropy, margin and logit_std of each row [rows, vocabulary], computed on the device."""
    top = probabilities.topk(2, dim=-1).values
    entropy = torch.special.entr(probabilities).sum(-1)
    logit_std = logits.std(-1, correction=0)
    features: list[list[float]] = torch.stack((top[:, 0], entropy, top[:, 0] - top[:, 1], logit_std), dim=1).tolist()
    return features
