"""Trees of drafted tokens, and what the draft model said at each."""

import math

import numpy as np
import pytest
import torch

from specbench_kit.decoding.distributions import DraftForward, features_of_row, features_of_rows
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.models.executors.base import Forward

LOGITS = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)) * 2


def build() -> tuple[TokenTree, DraftForward]:
    """root 9 -> 1 (token 4) -> 3 (token 7); root -> 2 (token 5) -> 4 (token 4) -> 5 (token 0)."""
    forward = DraftForward(Forward([LOGITS[:1], LOGITS[1:]]), Sampler(temperature=1.0))
    tree = TokenTree(9)
    nodes = [
        tree.add(*branch) for branch in ((4, 0, forward, 0), (5, 0, forward, 0), (7, 1, forward, 1))
    ]
    nodes += [tree.add(4, 2, forward, 2), tree.add(0, 4, forward, 3)]
    assert nodes == [1, 2, 3, 4, 5]
    return tree, forward


def test_nodes_depths_and_parents() -> None:
    tree, forward = build()
    assert (len(tree), tree.last) == (6, 5)
    assert tree.tokens == [9, 4, 5, 7, 4, 0]
    assert tree.parents == [-1, 0, 0, 1, 2, 4]
    assert [tree.depth(node) for node in range(6)] == [0, 1, 1, 2, 2, 3]
    assert tree.source(4) == (forward, 2)
    assert (len(TokenTree(3)), TokenTree(3).last) == (1, 0)


@pytest.mark.parametrize(
    "sampler",
    [Sampler(), Sampler(1.0), Sampler(0.5), Sampler(2.0, top_p=0.8), Sampler(1.0, 1.0, 5)],
)
def test_statistics_equal_a_direct_computation(sampler: Sampler) -> None:
    forward = DraftForward(Forward([LOGITS]), sampler)
    tree = TokenTree(0)
    for row, token in enumerate((3, 8, 29, 0)):
        tree.add(token, tree.last, forward, row)
    table = forward.table((3, 8, 29, 0)).tolist()
    for node, token in enumerate((3, 8, 29, 0), start=1):
        p = sampler.probabilities(LOGITS[node - 1]).double().numpy()
        first, second = np.sort(p)[::-1][:2]
        stats = tree.stats(node)
        assert stats.confidence == pytest.approx(first, abs=1e-6)
        assert stats.margin == pytest.approx(first - second, abs=1e-6)
        assert stats.entropy == pytest.approx(-sum(x * math.log(x) for x in p if x > 0), abs=1e-5)
        assert stats.logit_std == pytest.approx(LOGITS[node - 1].double().numpy().std(), abs=1e-5)
        assert stats.probability == tree.probability(node) == pytest.approx(p[token], abs=1e-6)
        listed = [stats.confidence, stats.entropy, stats.margin, stats.logit_std, stats.probability]
        assert table[node - 1] == pytest.approx(listed)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.5, 0.8), Sampler(2.0, 1.0, 3)])
def test_statistics_on_a_device_are_those_of_the_cpu(sampler: Sampler) -> None:
    logits = torch.cat((LOGITS, 60 * LOGITS[:2] + 200))
    probabilities = sampler.probabilities(logits)
    together = features_of_rows(logits, probabilities)
    for row, features in enumerate(together):
        alone = features_of_row(
            logits[row].numpy(), probabilities[row].numpy(), sampler.temperature or 1.0
        )
        assert alone == pytest.approx(features, rel=1e-4, abs=1e-4)


def test_score_is_the_product_along_the_path() -> None:
    tree, _ = build()
    assert tree.path_probability(0) == 1.0
    assert tree.path_probability(3) == pytest.approx(tree.probability(1) * tree.probability(3))
    assert tree.path_probability(5) == pytest.approx(
        tree.probability(2) * tree.probability(4) * tree.probability(5)
    )


@pytest.mark.parametrize(("top_k", "fused"), [(0, True), (2, False)])
def test_statistics_of_the_executor_are_taken_where_no_token_is_cut(
    top_k: int, fused: bool
) -> None:
    forward = Forward(
        [LOGITS], statistics=lambda temperature: [[temperature, 0.25, 0.5, 0.75]] * len(LOGITS)
    )
    stats = DraftForward(forward, Sampler(temperature=0.125, top_k=top_k)).stats(0, 1)
    has_statistics = (stats.confidence, stats.entropy, stats.margin, stats.logit_std) == (
        0.125,
        0.25,
        0.5,
        0.75,
    )
    assert has_statistics == fused


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    tree, forward = build()
    assert not set(vars(forward)) & {"probabilities", "logits"}
    tree.stats(5)
    assert set(vars(forward)) >= {"probabilities", "logits"}
