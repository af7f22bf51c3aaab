"""How drafted tokens are accepted: greedily, by matching the target's own draws, or by the residual rule."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.sampling import UniformNumbers, draw
from specbench_kit.decoding.tree import TokenTree

Rule = Callable[[TokenTree, Sequence[int], Tensor, UniformNumbers], tuple[list[int], int]]


def rule_for(tree: TokenTree, nodes: Sequence[int]) -> Rule:
    """The lossless rule under sampling, by how the nodes were proposed; none fits a tree that was drawn at random.

    Matching would be lossless for tokens drawn at random too, but accepts fewer of them than their distribution allows.
    """
    drawn = [tree.source(node)[0].sampled for node in nodes] if tree.sampled else []
    if not any(drawn):
        return match
    if not all(drawn):
        raise PolicyError("some nodes were drawn at random and others not: no rule verifies both in one draft")
    if any(tree.parents[node] != before for before, node in zip((0, *nodes), nodes, strict=False)):
        raise PolicyError("tokens drawn at random can only be verified as a chain: a tree needs those of expand")
    return residual


def walk(tree: TokenTree, nodes: Sequence[int], answer: Callable[[int], int]) -> tuple[list[int], int]:
    """From the root, move to the child equal to the target's answer while there is one.

    `answer(column)` is the target's token after column 0 (the root) or column i + 1 (`nodes[i]`). Returns the
    accepted nodes and the last answer, the extra token.
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

    `target` is [1 + nodes, vocabulary]. One number of the stream per committed token: plain decoding with the
    same seed draws the same tokens.
    """
    return walk(tree, nodes, lambda column: draw(target[column, None], [random.uniform("target")])[0])


def residual(tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers) -> tuple[list[int], int]:
    """Accept each token of a sampled chain with probability min(1, p/q); the extra token comes from max(0, p - q).

    Leviathan et al. 2023, algorithm 1. `target` is [1 + nodes, vocabulary]. `random` begins at the round's place in the
    output, so that no number is used twice, and the round alone decides which are.
    """
    for place, node in enumerate(nodes):
        source, row = tree.source(node)
        draft, token = cast(FullDistributions, source).probabilities[row], tree.tokens[node]
        if random.uniform("accept") * float(draft[token]) > float(target[place, token]):
            left = (target[place] - draft).clamp_(min=0)
            left = left if left.any() else target[place]  # equal up to rounding: p - q has no positive part
            return list(nodes[:place]), draw(left[None], [random.uniform("target")])[0]
    return list(nodes), draw(target[len(nodes), None], [random.uniform("target")])[0]
