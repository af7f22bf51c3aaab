"""What distributions of a draft forward are like, where the executor has not found it out on the way."""

from math import log, sqrt
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def features_of_row(logits: NDArray[Any], probabilities: NDArray[Any], temperature: float) -> list[float]:
    """Confidence, entropy, margin and logit_std, each [vocabulary]: a policy may ask for them at every drafted token.

    Of p = softmax(logits / temperature), cut to some tokens or not, the entropy is
    (logit of the best - mean logit under p) / temperature - log p(best), which takes no logarithm of every p.
    """
    best = int(probabilities.argmax())
    confidence = float(probabilities[best])
    others = probabilities.copy()
    others[best] = 0.0
    entropy = float(logits[best] - probabilities.dot(logits)) / temperature - log(confidence)
    centred = logits - logits.mean()
    logit_std = sqrt(float(centred.dot(centred)) / len(logits))
    return [confidence, max(entropy, 0.0), confidence - float(others.max()), logit_std]


def features_of_rows(logits: Tensor, probabilities: Tensor) -> list[list[float]]:
    """The same of [rows, vocabulary], on the device."""
    top = probabilities.topk(2, dim=-1).values
    entropy = torch.special.entr(probabilities).sum(-1)
    logit_std = logits.std(-1, correction=0)
    features: list[list[float]] = torch.stack((top[:, 0], entropy, top[:, 0] - top[:, 1], logit_std), dim=1).tolist()
    return features
