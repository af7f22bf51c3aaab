"""How drafted tokens are accepted: greedily, by matching the target's own draws, or by a rule for
drawn tokens.

Tokens that were drawn at random are verified one by one (`residual`), as one block (`block`) or, in
a tree, child by child (`siblings`).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.sampling import UniformNumbers, draw
from specbench_kit.decoding.tree import TokenTree

Rule = Callable[[TokenTree, Sequence[int], Tensor, UniformNumbers], tuple[list[int], int]]
"""Returns the accepted nodes and the bonus token, given a tree, the verified nodes, the target and
random numbers.
"""


def rule_for(tree: TokenTree, nodes: Sequence[int]) -> Rule:
    """Return the lossless rule under sampling for how the nodes were proposed.

    PolicyError if there is none, which is so for a tree whose tokens were drawn at random. Matching
    would be lossless for tokens drawn at random too, but accepts fewer of them than their
    distribution allows.
    """
    drawn = [tree.source(node)[0].sampled for node in nodes] if tree.sampled else []
    if not any(drawn):
        return match
    if not all(drawn):
        raise PolicyError(
            "some nodes were drawn at random and others not: no rule verifies both in one draft"
        )
    if tree.verification == "without-replacement":
        return siblings
    if tree.verification == "with-replacement":
        return partial(siblings, replacement=True)
    if any(tree.parents[node] != above for above, node in zip((0, *nodes), nodes, strict=False)):
        raise PolicyError(
            "tokens drawn at random can only be verified as a chain: a tree needs those of expand"
        )
    return block if tree.verification == "block" else residual


def walk(
    tree: TokenTree, nodes: Sequence[int], answer: Callable[[int], int]
) -> tuple[list[int], int]:
    """Walk down from the root while a child equals the target's token; return the path and the
    bonus token.

    `answer(column)` is the target's token after column 0 (the root) or column i + 1 (`nodes[i]`).
    """
    columns = {
        (tree.parents[node], tree.tokens[node]): column
        for column, node in enumerate(nodes, start=1)
    }
    path: list[int] = []
    token = answer(0)
    while column := columns.get((path[-1] if path else 0, token)):
        path.append(nodes[column - 1])
        token = answer(column)
    return path, token


def match(
    tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers
) -> tuple[list[int], int]:
    """Sample and match: draw from the target at every node of the walk. Lossless for any
    deterministic tree.

    `target` is [1 + nodes, vocabulary]. Each committed token takes one number of the stream, so that plain decoding
    with the same seed draws the same tokens.
    """
    return walk(
        tree, nodes, lambda column: draw(target[column, None], [random.uniform("target")])[0]
    )


def residual(
    tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers
) -> tuple[list[int], int]:
    """Accept each token of a sampled chain with probability min(1, p/q); draw the bonus token from
    max(0, p - q).

    Leviathan et al. 2023, algorithm 1. `target` is [1 + nodes, vocabulary]. `random` begins at the
    round's position in the output, so that no number is used twice, and the position alone decides
    which numbers a round uses.
    """
    for index, node in enumerate(nodes):
        source, row = tree.source(node)
        # A device's distributions arrive in main memory, wherever the target is.
        draft = cast(FullDistributions, source).probabilities[row].to(target.device)
        token = tree.tokens[node]
        chance = float(target[index, token])
        if random.uniform("accept") * float(draft[token]) > chance or not chance:
            # A device's distributions arrive in main memory, and a draft model may have a card of
            # its own.
            surplus = (target[index] - draft.to(target.device)).clamp_(min=0)
            # Where p and q are equal up to rounding, p - q has no positive part, and any draw from
            # p is right.
            surplus = surplus if surplus.any() else target[index]
            return list(nodes[:index]), draw(surplus[None], [random.uniform("target")])[0]
    return list(nodes), draw(target[len(nodes), None], [random.uniform("target")])[0]


def block(
    tree: TokenTree, nodes: Sequence[int], target: Tensor, random: UniformNumbers
) -> tuple[list[int], int]:
    """Verify a sampled chain as one block: accept the longest prefix that passes, whatever stands
    before its end.

    Sun et al. 2024 (arXiv 2403.10444), algorithm 2: a prefix keeps the weight w = min(1, w p/q);
    the whole chain passes with its weight, a shorter prefix with s / (s + 1 - w), where s is the
    sum of max(0, w p - q) over the next token. In expectation it accepts at least as many tokens as
    `residual`. `target` is [1 + nodes, vocabulary].
    """
    weight = 1.0
    weights = [1.0]
    passes = []
    for index, node in enumerate(nodes):
        draft = _distribution(tree, node, target)
        token = tree.tokens[node]
        weight = min(1.0, weight * float(target[index, token]) / float(draft[token]))
        weights.append(weight)
        if index + 1 == len(nodes):
            passes.append(weight)
            break
        following = _distribution(tree, nodes[index + 1], target)
        surplus = float((weight * target[index + 1] - following).clamp_(min=0).sum())
        passes.append(surplus / (surplus + 1 - weight) if surplus else 0.0)
    # One number decides among all prefixes. Those of a number for each prefix that this round does
    # not commit would be read again by the next round.
    number = random.uniform("accept")
    accepted = 0
    for length in range(len(nodes), 0, -1):
        if number < passes[length - 1]:
            accepted = length
            break
        number = (number - passes[length - 1]) / (1 - passes[length - 1])
    bonus = target[accepted]
    if accepted < len(nodes):
        bonus = _surplus(
            weights[accepted] * bonus, _distribution(tree, nodes[accepted], target), bonus
        )
    return list(nodes[:accepted]), draw(bonus[None], [random.uniform("target")])[0]


def siblings(
    tree: TokenTree,
    nodes: Sequence[int],
    target: Tensor,
    random: UniformNumbers,
    *,
    replacement: bool = False,
) -> tuple[list[int], int]:
    """Verify a tree whose children were drawn at random: try the children of a node in the order of
    their drawing.

    A child is accepted with probability min(1, p/q). After a rejection p becomes max(0, p - q),
    normalised. If the children were drawn without `replacement`, the rejected token is also removed
    from q (Sequoia, arXiv 2402.12374, algorithm 2); with it, q stays (SpecInfer, arXiv 2305.09781,
    algorithm 2). `target` is [1 + nodes, vocabulary].
    """
    column = {0: 0} | {node: index for index, node in enumerate(nodes, 1)}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node in nodes:
        children[tree.parents[node]].append(node)
    path: list[int] = []
    while True:
        end = path[-1] if path else 0
        remaining = target[column[end]]
        # As in `block`, one number decides among all children of a node: each committed token reads
        # one.
        number = random.uniform("accept") if children[end] else 0.0
        accepted = None
        draft = _distribution(tree, children[end][0], target) if children[end] else remaining
        for node in children[end]:
            token = tree.tokens[node]
            chance = min(1.0, float(remaining[token]) / float(draft[token]))
            if number < chance:
                accepted = node
                break
            number = (number - chance) / (1 - chance)
            remaining = _surplus(remaining, draft, remaining)
            remaining = remaining / remaining.sum()
            if not replacement:
                draft = draft.clone()
                draft[token] = 0
                draft /= draft.sum().clamp_(min=torch.finfo(draft.dtype).tiny)
        if accepted is None:
            return path, draw(remaining[None], [random.uniform("target")])[0]
        path.append(accepted)


def _distribution(tree: TokenTree, node: int, target: Tensor) -> Tensor:
    """Return the distribution [vocabulary] that a node was drawn from, on the target's device."""
    source, row = tree.source(node)
    return cast(FullDistributions, source).probabilities[row].to(target.device)


def _surplus(weighted: Tensor, draft: Tensor, target: Tensor) -> Tensor:
    """Return max(0, weighted - draft), or the target where the two are equal up to rounding."""
    surplus = (weighted - draft).clamp_(min=0)
    return surplus if surplus.any() else target
