"""The best children of many nodes at once, which a growing tree needs at every level."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

COLUMNS = 128
"""The vocabulary is searched as a table of this many columns, of which only the largest entries are looked at first."""

Candidate = tuple[float, int, int]
"""Score, row and token."""


def likeliest(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Return the `count` highest-scoring tokens among the `branch` likeliest of each row, best first.

    `probabilities` is [rows, vocabulary]. A token's score is its row's base plus the logarithm of its probability.
    """
    branch = min(branch, probabilities.shape[-1])
    count = min(count, branch * len(bases))
    return (_by_bound if probabilities.is_cpu else _by_rows)(probabilities, bases, branch, count)


def _by_rows(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Sort every row as far as needed, on the device."""
    best = probabilities.topk(branch)
    scores = best.values.log() + best.values.new_tensor(bases)[:, None]
    values, indices = scores.flatten().topk(count)
    tokens = best.indices.flatten()[indices].tolist()
    rows = (index // branch for index in indices.tolist())
    return list(zip(values.tolist(), rows, tokens, strict=True))


def _by_bound(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Find a score that the last of the best reaches for certain, and sort only the entries that reach it too.

    On a CPU, sorting rows costs several times a look at each entry.
    """
    rows, vocabulary = probabilities.shape
    columns = min(max(COLUMNS, branch), vocabulary)
    table = probabilities.numpy()
    if vocabulary % columns:
        table = np.pad(table, ((0, 0), (0, -vocabulary % columns)))
    table = table.reshape(rows, -1, columns)
    weights = np.exp(np.asarray(bases)).astype(np.float32)[:, None]
    maxima = torch.from_numpy(table).amax(1).numpy() * weights  # three times as fast as numpy's
    # Column maxima are tokens of their own, so the best `count` of all cannot score below the best `count` of these,
    # of which no more than `branch` may be of one row.
    bound = np.partition(np.partition(maxima, -branch)[:, -branch:], -count, axis=None)[-count]
    row, column = np.nonzero(maxima >= bound)
    entries = table[row, :, column]
    entry, line = np.nonzero(entries * weights[row] >= bound)
    origin, token = row[entry], line * columns + column[entry]
    scores = torch.from_numpy(entries[entry, line]).log_().add_(torch.tensor(bases)[origin]).numpy()
    order = np.argsort(-scores, kind="stable")
    remaining: defaultdict[int, int] = defaultdict(lambda: branch)
    best = []
    for candidate in zip(scores[order].tolist(), origin[order].tolist(), token[order].tolist(), strict=True):
        if remaining[candidate[1]]:
            remaining[candidate[1]] -= 1
            best.append(candidate)
    return best[:count]
