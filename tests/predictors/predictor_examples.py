"""Synthetic drafted tokens: softmax statistics of random logits, accepted the likelier the surer the draft was."""

import numpy as np

from specbench_kit.predictors.base import Examples


def synthetic(count: int, seed: int = 0) -> Examples:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(count, 8)) * generator.gamma(2, 1.5, size=(count, 1))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    second, first = np.sort(probabilities, axis=1)[:, -2:].T
    features = np.stack([first, entropy, first - second, logits.std(axis=1)], axis=1).astype(
        np.float32
    )
    # Few distinct values, so that trees meet ties and tokens that lie on a threshold.
    features = np.round(features, 2)
    labels = generator.random(count) < 0.05 + 0.9 * first**1.5
    return Examples(
        features, labels, generator.integers(0, count // 10, count), generator.integers(1, 9, count)
    )
