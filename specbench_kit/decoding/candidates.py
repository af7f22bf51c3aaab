"""The best children of many nodes at once: what a growing tree asks for at every level."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

COLUMNS = 128
"""The vocabulary is looked through as a table of so many columns, of each of which only the largest entry counts."""

Candidate = tuple[float, int, int]
"""Score, row and token."""


def likeliest(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Of the `branch` likeliest tokens of each row [rows, vocabulary], the `count` that score highest, best first.

    A token's score is its row's base plus the logarithm of its probability.
    """
    branch = min(branch, probabilities.shape[-1])
    count = min(count, branch * len(bases))
    return (_by_bound if probabilities.is_cpu else _by_rows)(probabilities, bases, branch, count)


def _by_rows(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Sort every row as far as needed, on the device."""
    best = probabilities.topk(branch)
    scores = best.values.log() + best.values.new_tensor(bases)[:, None]
    values, places = scores.flatten().topk(count)
    tokens = best.indices.flatten()[places].tolist()
    rows = (place // branch for place in places.tolist())
    return list(zip(values.tolist(), rows, tokens, strict=True))


def _by_bound(probabilities: Tensor, bases: Sequence[float], branch: int, count: int) -> list[Candidate]:
    """Sorting rows costs several times a look at each entry, so find what the last of the best can at least reach."""
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
    found = table[row, :, column]
    which, line = np.nonzero(found * weights[row] >= bound)
    origin, token = row[which], line * columns + column[which]
    scores = torch.from_numpy(found[which, line]).log_().add_(torch.tensor(bases)[origin]).numpy()
    order = np.argsort(-scores, kind="stable")
    candidates = zip(scores[order].tolist(), origin[order].tolist(), token[order].tolist(), strict=True)
    return _few_per_row(candidates, branch)[:count]


def _few_per_row(candidates: Iterable[Candidate], branch: int) -> list[Candidate]:
    left: defaultdict[int, int] = defaultdict(lambda: branch)
    few = []
    for candidate in candidates:
        if left[candidate[1]]:
            left[candidate[1]] -= 1
            few.append(candidate)
    return few
