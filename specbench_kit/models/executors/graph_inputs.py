"""What a captured forward reads, and the best candidates of what it says.

The inputs lie in pinned memory that the host fills, and the graph itself copies them to the card.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specbench_kit.models.executors.base import Row
from specbench_kit.models.executors.kernels.description import STATISTICS, TOP
from specbench_kit.models.executors.pending import AnyToken, PendingToken, parts_of

NODES = 256
"""The most nodes of a tree, provisional ones of earlier forwards included, that a graph can attend
to.
"""


class GraphShape(NamedTuple):
    """The shape of a captured forward.

    It computes `width` new tokens in each of the slots `first`, `first + 1`, ..., `first + rows -
    1`, which attend to at most `length` keys. `nodes` is the size of trees, 0 if all rows are
    chains. With length 0 it is one prompt in any slot, which attends to nothing that was computed
    before.
    """

    first: int
    rows: int
    width: int
    length: int
    nodes: int = 0


class GraphInputs:
    """The inputs of one shape, in pinned memory and on the card.

    A row's columns are its new tokens. A token below 0 is number `-1 - token` of the tokens that
    another executor has left on the card; `cells` are the places in KV, and `places` the positions
    in the text. A column that is only padding is written to the last cell, `trash`, which nothing
    attends to.
    """

    def __init__(self, shape: GraphShape, trash: int, device: torch.device) -> None:
        self.shape = shape
        self._trash = trash
        rows = shape.rows
        width = shape.width
        self._host = torch.zeros((rows, 3 * width + 3), dtype=torch.int64, pin_memory=True)
        self._card = torch.zeros((rows, 3 * width + 3), dtype=torch.int64, device=device)
        self.tokens, self.cells, self.places = (
            self._card[:, i * width : (i + 1) * width] for i in range(3)
        )
        self.last, self.prefixes, self.slot = (self._card[:, 3 * width + i] for i in range(3))
        self._numbers = self._host.numpy()
        self.was_read = torch.cuda.Event()
        """Happens when the card has read what was written last."""
        size = (rows, width, shape.nodes)
        self._host_ancestors = (
            torch.zeros(size, dtype=torch.uint8, pin_memory=True) if shape.nodes else None
        )
        self.ancestors = (
            torch.zeros(size, dtype=torch.uint8, device=device) if shape.nodes else None
        )

    def fill(self, rows: Sequence[Row], linked: Sequence[Sequence[int]]) -> None:
        """Write the rows of a forward; `linked` has their tokens, with pending ones by their number
        below 0.
        """
        if not self.was_read.query():
            self.was_read.synchronize()
        numbers = self._numbers
        width = self.shape.width
        numbers[:] = 0
        numbers[:, width : 2 * width] = self._trash
        if self._host_ancestors is not None:
            self._host_ancestors.zero_()
        for row, tokens in zip(rows, linked, strict=True):
            count = len(tokens)
            line = numbers[row.slot - self.shape.first if self.shape.length else 0]
            line[:count] = tokens
            line[width : width + count] = line[2 * width : 2 * width + count] = range(
                row.start, row.start + count
            )
            line[3 * width] = count - 1
            line[3 * width + 1] = row.start if row.parents is None else row.prefix
            line[3 * width + 2] = row.slot
            if self._host_ancestors is not None:
                self._fill_tree(row, line)

    def copy(self) -> None:
        """Bring what was written to the card; in a graph this is a part of each replay."""
        self._card.copy_(self._host, non_blocking=True)
        if self.ancestors is not None and self._host_ancestors is not None:
            self.ancestors.copy_(self._host_ancestors, non_blocking=True)

    def _fill_tree(self, row: Row, line: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        assert self._host_ancestors is not None
        table = self._host_ancestors.numpy()[row.slot - self.shape.first]
        width = self.shape.width
        paths = row.paths()
        if paths is None:
            table[: len(row.tokens), : len(row.tokens)] = np.tri(len(row.tokens), dtype=np.uint8)
            return
        for index, path in enumerate(paths):
            table[index, path] = 1
            line[2 * width + index] = row.prefix + len(path) - 1


def pending_in(rows: Sequence[Row]) -> list[PendingToken]:
    """Return the pending tokens of rows whose numbers the host does not know."""
    parts: list[AnyToken] = [part for row in rows for part in parts_of(row.tokens)]
    return [part for part in parts if isinstance(part, PendingToken) and not part.known]


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is no smaller."""
    return 1 << max(0, count - 1).bit_length()


Fields = np.ndarray[Any, np.dtype[np.float64]]


def best_candidates(
    fields: Fields,
    rows: Sequence[int],
    bases: Sequence[float],
    branch: int,
    count: int,
    floor: float,
) -> list[tuple[float, int, int]]:
    """Return the best candidates as (score, row, token), see `DraftForward.likeliest`."""
    chosen = fields[list(rows)]
    scores = chosen[:, STATISTICS : STATISTICS + branch].astype(np.float32)
    scores += np.asarray(bases, np.float32)[:, None]
    tokens = chosen[:, STATISTICS + TOP : STATISTICS + TOP + branch].astype(int)
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    best = zip(
        scores.flat[order].tolist(),
        (order // branch).tolist(),
        tokens.flat[order].tolist(),
        strict=True,
    )
    return [candidate for candidate in best if candidate[0] > floor and candidate[0] > -np.inf]
