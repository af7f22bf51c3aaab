"""How drafted tokens are accepted: greedily, by matching the target's own draws, or by the residual rule."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.sampling import UniformNumbers, draw
from specbench_kit.decoding.tree import TokenTree

Rule = Callable[[TokenTree, Sequence[int], Tensor, UniformNumbers], tuple[list[int], int]]
"""Returns the accepted nodes and the bonus token, given a tree, the verified nodes, the target and random numbers."""


def rule_for(tree: TokenTree, nodes: Sequence[int]) -> Rule:
    """Return the lossless rule under sampling for how the nodes were proposed.

    PolicyError if there is none, which is so for a tree whose tokens were drawn at random. Matching would be lossless
    for tokens drawn at random too, but accepts fewer of them than their distribution allows.
    """
    drawn = [tree.source(node)[0].sampled for node in nodes] if tree.sampled else []
    if not any(drawn):
        return match
    if not all(drawn):
        raise PolicyError("some nodes were drawn at random and others not: no rule verifies both in one draft")
    if any(tree.parents[node] != above for above, node in zip((0, *nodes), nodes, strict=False)):
        raise PolicyError("tokens drawn at random can only be verified as a chain: a tree needs those of expand")
    return residual


def walk(tree: TokenTree, nodes: Sequence[int], answer: Callable[[int], int]) -> tuple[list[int], int]:
    """Walk down from the root while a child equals the target's token; return the path and the bonus token.

    `answer(column)` is the target's token after column 0 (the root) or column i + 1 (`nodes[i]`).
    """
    columns = {(tree.parents[node], tree.tokens[node]): column for column, node in enumerate(nodes, start=1)}
    path: list[int] = []
    token = answer(0)
    while column := columns.get((path[-1] if path else 0, token)):
        path.append(nodes[column - 1])
        token = answer(column)
    return path, token


def match(tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers) -> tuple[list[int], int]:
    """Sample and match: draw from the target at every node of the walk. Lossless for any deterministic tree.

    `target` is [1 + nodes, vocabulary]. Each committed token takes one number of the stream, so that plain decoding
    with the same seed draws the same tokens.
    """
    return walk(tree, nodes, lambda column: draw(target[column, None], [random.uniform("target")])[0])


def residual(tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers) -> tuple[list[int], int]:
    """Accept each token of a sampled chain with probability min(1, p/q); draw the bonus token from max(0, p - q).

    Leviathan et al. 2023, algorithm 1. `target` is [1 + nodes, vocabulary]. `random` begins at the round's position in
    the output, so that no number is used twice, and the position alone decides which numbers a round uses.
    """
    for index, node in enumerate(nodes):
        source, row = tree.source(node)
        # A device's distributions arrive in main memory, wherever the target is.
        draft, token = cast(FullDistributions, source).probabilities[row].to(target.device), tree.tokens[node]
        if random.uniform("accept") * float(draft[token]) > float(target[index, token]):
            # A device's distributions arrive in main memory, and a draft model may have a card of its own.
            surplus = (target[index] - draft.to(target.device)).clamp_(min=0)
            # Where p and q are equal up to rounding, p - q has no positive part, and any draw from p is right.
            surplus = surplus if surplus.any() else target[index]
            return list(nodes[:index]), draw(surplus[None], [random.uniform("target")])[0]
    return list(nodes), draw(target[len(nodes), None], [random.uniform("target")])[0]
