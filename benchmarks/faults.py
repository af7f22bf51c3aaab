"""Two plausible faults of greedy verification, to test that the check of outputs notices them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from specbench_kit.decoding import verification
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict, VerifiedRow

ACCEPTED_WITHIN, SWAPPED_WITHIN = 0.45, 0.2
"""Largest gap between the logits of the target's two best tokens at which a fault occurs."""

Outcome = tuple[list[int], int]
Fault = Callable[[TokenTree, list[int], Tensor], Outcome]
"""A greedy rule: the accepted path and the bonus token for logits [1 + nodes, vocabulary]."""


def accept_second(tree: TokenTree, nodes: list[int], logits: Tensor) -> Outcome:
    """Accept a drafted token that is only the target's second best, if it is nearly the best."""
    values, tokens = logits.topk(2)
    columns = {
        (tree.parents[node], tree.tokens[node]): column
        for column, node in enumerate(nodes, start=1)
    }
    path: list[int] = []
    column = 0
    while True:
        at, (best, second) = path[-1] if path else 0, tokens[column].tolist()
        near = values[column, 0] - values[column, 1] < ACCEPTED_WITHIN
        child = columns.get((at, best)) or (columns.get((at, second)) if near else None)
        if child is None:
            return path, best
        column = child
        path.append(nodes[column - 1])


def swap_extra(tree: TokenTree, nodes: list[int], logits: Tensor) -> Outcome:
    """End every round with the second best token, if it is nearly the best."""
    values, tokens = logits.topk(2)
    path, extra = walk(tree, nodes, tokens[:, 0].tolist().__getitem__)
    column = nodes.index(path[-1]) + 1 if path else 0
    near = values[column, 0] - values[column, 1] < SWAPPED_WITHIN
    return path, int(tokens[column, 1]) if near else extra


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Put the fault into every verification."""

    right = verification.verdict_on

    def faulty(draft: Draft, nodes: list[int], row: VerifiedRow, *rule: Any) -> Verdict:
        path, bonus = fault(draft.tree, nodes, row.logits(nodes).float())
        return replace(right(draft, nodes, row, *rule), path=path, bonus=bonus)

    verification.verdict_on = faulty  # type: ignore[assignment]
    try:
        yield
    finally:
        verification.verdict_on = right
