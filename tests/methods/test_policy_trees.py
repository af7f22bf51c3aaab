"""Which trees opt-tree and sequoia draft, and the table that sequoia goes by: their rules' own figures."""

import json
from pathlib import Path

import pytest
from environments import ENVIRONMENT
from known_drafts import TreeDrafter
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama
from tiny_predictors import PAIR

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.latency import BatchSums, LatencyModel, TableModel
from specbench_kit.methods.autodraft import AutoDraft, _AutoDraftPolicy
from specbench_kit.methods.base import Latencies, LinkCosts, Policy
from specbench_kit.methods.eagle2_tree import Eagle2Tree, _MeasuredPolicy
from specbench_kit.methods.opt_tree import OptTree, _OptTreePolicy
from specbench_kit.methods.sequoia import TreeShape, TreeShapes, _SequoiaPolicy, fastest
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.ranks import RankTable, count_ranks, find, load, save
from specbench_kit.studies.recording.ranks import ranks_of

LEAF = TreeShape()
CHAIN = TreeShape((TreeShape((TreeShape((LEAF,)),)),))
FORK = TreeShape((TreeShape((LEAF,)), LEAF))
CHANCES = (0.6, 0.2)


def draft_with(table: dict[tuple[int, ...], list[float]], policy: Policy) -> Draft:
    drafter = TreeDrafter([[]])
    drafter.table = table
    policy.draft(drafter)  # type: ignore[arg-type]
    return drafter.drafts[0]


OPT = {
    (): [0.6, 0.3, 0.1, 1e-9, 1e-9],
    (0,): [0.7, 0.2, 0.1, 1e-9, 1e-9],
    (1,): [0.8, 0.1, 0.1, 1e-9, 1e-9],
    (2,): [0.5, 0.3, 0.2, 1e-9, 1e-9],
    (0, 0): [1.0, 1e-9, 1e-9, 1e-9, 1e-9],
}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [(0,), (0, 0), (1,)]),  # .6, .42 and .3: 1.32 after 1.0, not enough for a third level
        ({"gain": 0.3}, [(0,), (0, 0), (0, 0, 0)]),
        ({"gain": 0.3, "max_depth": 3}, [(0,), (0, 0), (1,)]),
        ({"gain": 0.3, "max_depth": 2}, [(0,), (1,), (2,)]),
    ],
)
def test_opt_tree_stops_with_the_level_that_brings_little(
    options: dict[str, float], kept: list[tuple[int, ...]]
) -> None:
    """The trees of OPT-Tree's own `Tree`, run beside on 250 random distributions, have the same nodes in all cases."""
    policy = _OptTreePolicy(OptTree(nodes=3, **options))  # type: ignore[arg-type]
    draft = draft_with(OPT, policy)
    (chosen,) = policy.choose([draft])
    assert (
        sorted(tuple(draft.tree.tokens[n] for n in draft.tree.path(node)) for node in chosen)
        == kept
    )


VERIFY = TableModel((10.0, 10.0, 10.5, 12.0))
"""Seconds of verifying no drafted token, one, two and three."""


@pytest.mark.parametrize(
    ("draft_s", "rtt_s", "depth", "kept", "forwards"),
    [
        (1.0, None, 5, [(0,), (0, 0), (1,)], 2),
        (0.1, None, 2, [(0,), (0, 0), (0, 0, 0)], 3),
        (1.0, None, 0, [(0,), (1,)], 1),
        (8.0, None, 5, [(0,), (0, 0), (1,)], 2),
        (40.0, None, 5, [(0,), (1,), (2,)], 1),
        (1.0, 60.0, 2, [(0,), (0, 0), (0, 0, 0)], 3),
    ],
)
def test_a_tree_from_measured_costs_is_as_large_as_pays(
    draft_s: float, rtt_s: float | None, depth: int, kept: list[tuple[int, ...]], forwards: int
) -> None:
    """A draft forward takes 1 s. One level: 1.6, 1.9 and 2.0 tokens in 11, 11.5 and 13 s: .145, .165 and .154 a second.

    The level added 1 token to the target's own, so another promises 1 again: 2.9 in 12.5 s, .232 a second. It brings
    .6, .42 and .3, which is .32 more: 2.02 in 12.5 s and 2.32 in 14 s, .1616 and .1657 a second. A third level promises
    .32 x .32 / 1 more: 2.4224 in 15 s, .1615 a second, so that three nodes of two levels are verified. With .1 s a
    forward they take 12.2 s, .1902 a second, and the third level promises 2.4224 in 12.3 s, .1969 a second; with 60 s
    of a link, 74 and 75 s, .0314 and .0323. It brings .12: three nodes of .6, .42 and .42. With 8 s a forward the first
    level has 2.0 in 20 s, .1 a second, and the second promises 3.0 in 28 s, .107; with 40 s 2.0 in 52 s, .0385, and
    3.0 in 92 s, .0326.
    """
    link = None if rtt_s is None else LinkCosts(rtt_s=rtt_s)
    options = Eagle2Tree(total=4, depth=depth, top_k=3, cost="measured")
    policy = _MeasuredPolicy(options, Latencies(TableModel((draft_s,)), VERIFY, link))
    draft = draft_with(OPT, policy)
    (chosen,) = policy.choose([draft])
    assert (
        sorted(tuple(draft.tree.tokens[n] for n in draft.tree.path(node)) for node in chosen)
        == kept
    )
    assert max(draft.tree.depth(node) for node in range(1, len(draft.tree))) == forwards


def test_a_tree_from_measured_costs_shares_a_verification_with_the_trees_of_the_batch() -> None:
    """The likeliest token of two requests has .9 each; a verification takes 10 s with one of them and 15 s with both.

    After a draft forward of 1 s, that is 2.9 tokens in 11 s, .264 a second, and 3.8 in 16 s, .238 a second.
    """

    class OfBatch(LatencyModel):
        def of_sums(self, sums: BatchSums) -> float:
            return 10.0 + 5 * max(0, sums.linear - sums.requests - 1)

    options = Eagle2Tree(total=2, depth=0, top_k=1, cost="measured")
    policy = _MeasuredPolicy(options, Latencies(TableModel((1.0,)), OfBatch()))
    drafter = TreeDrafter([[], []])
    drafter.table = {(): [0.9, 0.1, 1e-9, 1e-9, 1e-9]}
    policy.draft(drafter)  # type: ignore[arg-type]
    assert policy.choose(drafter.drafts) == [[1], []]


def test_without_costs_no_link_is_weighed() -> None:
    assert parse_method("eagle2-tree").prepare(ENVIRONMENT).uses() == {}
    assert parse_method("eagle2-tree:cost=measured").prepare(ENVIRONMENT).uses()["latencies"]
    with pytest.raises(SkitError, match="link has no effect without cost=measured"):
        parse_method("eagle2-tree:link=false")


def autodraft(**options: float) -> _AutoDraftPolicy:
    """A policy with up to four nodes in steps of two, where wide forwards and verifications take longer."""
    latencies = Latencies(
        TableModel((1.0, 1.0, 2.0, 3.0)), TableModel((10.0, 10.0, 10.5, 11.0, 12.0))
    )
    sizes = {"nodes": 4, "step": 2, "max_depth": 6, "margin": 0.0}
    return _AutoDraftPolicy(AutoDraft(**(sizes | options)), latencies)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({"cost_weight": 0.0}, [4, 2, 2, 2]),
        ({"cost_weight": 0.0, "max_depth": 3}, [4, 2, 2]),
        (
            {"cost_weight": 1.0, "edge_price_per_hour": 1.0, "server_price_per_hour": 1e-9},
            [4, 2, 2],
        ),
        (
            {"cost_weight": 1.0, "edge_price_per_hour": 1e-9, "server_price_per_hour": 1.0},
            [4, 4, 4, 4],
        ),
    ],
)
def test_autodraft_grows_while_time_and_money_per_token_fall(
    options: dict[str, float], widths: list[int]
) -> None:
    """The first level is as wide as it may: .6, .3, .1 and nothing, after 1 s; forwarding its four nodes takes 3 s.

    By time alone: of the next level two nodes (.42 and .24) promise 1 + 1 + .66 tokens in 4 + 1 + 12 s, .1565 a second,
    four (and .12, .06) 2.84 in 4 + 3 + 12 s, .1495 a second: it has two. Of all six, four are sent: 1 + 1.56 tokens in
    16 s, .16 a second. The third level, after 5 s, has two nodes again (.42, .048): 3.128 in 18 s against 3.224 in 20.
    Now four nodes are 2.74 in 17 s, .1612 a second: better. The fourth (.084 twice) brings nothing, 2.74 in 18 s: the
    end. By the price of drafting alone 4 s bring 2.56 tokens, 1.56 each, and 5 s 2.74, 1.82 each: the third level is
    the last. By the price of verifying alone, wide levels cost nothing: 12 s bring 2.56, then 2.74, then 2.74 again.
    """
    policy = autodraft(**options)
    draft = draft_with(OPT, policy)
    (chosen,) = policy.choose([draft])
    paths = [tuple(draft.tree.tokens[n] for n in draft.tree.path(node)) for node in chosen]
    assert sorted(paths) == [(0,), (0, 0), (0, 0, 0), (1,)]
    depths = [draft.tree.depth(node) for node in range(1, len(draft.tree))]
    assert [depths.count(level) for level in range(1, max(depths) + 1)] == widths
    assert policy.plans["0"].expected == pytest.approx(1.74)


def test_autodraft_learns_how_many_of_the_expected_tokens_are_accepted_and_what_a_token_takes() -> (
    None
):
    """Three of 1.74 expected tokens are accepted in a round of 19 s by the clock, after 5 s of drafting and before 12.

    The references are 10 s a token of the server alone, then 19 / 4, as soon as the request has ended.
    """
    policy = autodraft(max_depth=3, edge_price_per_hour=2.0, server_price_per_hour=3.0)
    drafter = TreeDrafter([[]])
    drafter.table = OPT
    policy.draft(drafter)  # type: ignore[arg-type]
    assert policy.per_token is not None
    assert policy.per_token.reference == (10.0, 30.0)
    (chosen,) = policy.choose(drafter.drafts)
    drafter.clock.charge("verify", 19.0)
    drafter.clock.wait_until(19.0)
    policy.observe(drafter.verdicts([chosen], [3]))
    assert policy.scale == pytest.approx(3 / 1.74)
    assert policy.per_token.reference == (10.0, 30.0)
    policy.forget("0")
    assert policy.per_token.reference == pytest.approx((19 / 4, (5 * 2 + 12 * 3) / 4))


def test_what_a_shape_is_expected_to_give() -> None:
    assert CHAIN.expected(CHANCES) == pytest.approx(2.176)
    assert FORK.expected(CHANCES) == pytest.approx(2.16)
    assert (CHAIN.size, CHAIN.levels, FORK.size, FORK.levels) == (4, 4, 4, 3)


def test_a_tree_of_a_size() -> None:
    results = TreeShapes(CHANCES, 8, 5)
    assert results.shape(4, 4) == CHAIN
    assert results.shape(4, 3) == FORK
    assert results.expected(4, 4) == pytest.approx(2.176)
    assert results.expected(4, 1) == float("-inf")


@pytest.mark.parametrize("chances", [CHANCES, (0.7, 0.0), (0.0, 0.7)])
def test_the_best_tree_of_every_size(chances: tuple[float, float]) -> None:
    """Also where no token of a rank was ever the target's, as in every table that was measured on few tokens."""
    results = TreeShapes(chances, 8, 5)
    for size in range(1, 9):
        for levels in range(1, 6):
            best = max(
                (tree.expected(chances) for tree in all_trees(size, levels)), default=float("-inf")
            )
            assert results.expected(size, levels) == pytest.approx(best)
            if best > 0:
                shape = results.shape(size, levels)
                assert (shape.size, shape.levels <= levels) == (size, True)
                assert shape.expected(chances) == pytest.approx(best)


def all_trees(size: int, levels: int) -> list[TreeShape]:
    """Every tree of so many nodes on at most so many levels, with at most two children per node."""
    if size == 1:
        return [LEAF]
    if levels == 1:
        return []
    entry = [TreeShape((only,)) for only in all_trees(size - 1, levels - 1)]
    pairs = [
        TreeShape((first, second))
        for own in range(1, size - 1)
        for first in all_trees(own, levels - 1)
        for second in all_trees(size - 1 - own, levels - 1)
    ]
    return entry + pairs


def test_the_tree_that_takes_the_least_time_per_token() -> None:
    """A chain of four takes 4 + 11 for 2.176 tokens, two children and a grandchild 3 + 11 for 2.16."""
    assert [
        (levels + 11) / shape.expected(CHANCES) for levels, shape in ((4, CHAIN), (3, FORK))
    ] == pytest.approx([6.8934, 6.4815], abs=1e-4)
    assert fastest(CHANCES, (4,), 4, 1.0, lambda _: 11.0) == FORK
    assert fastest(CHANCES, (1, 2, 4), 4, 0.01, lambda size: float(size)) == LEAF


def test_sequoia_drafts_its_tree_with_the_likeliest_tokens() -> None:
    policy = _SequoiaPolicy(CHANCES, (4,), 4, Latencies(TableModel((1.0,)), TableModel((11.0,))))
    draft = draft_with(OPT, policy)
    assert policy.shape == FORK
    assert [
        tuple(draft.tree.tokens[n] for n in draft.tree.path(node))
        for node in range(1, len(draft.tree))
    ] == [
        (0,),
        (1,),
        (0, 0),
    ]


def test_ranks_are_counted_after_each_run_of_first_ones() -> None:
    shares, by_depth = count_ranks([[0, 0, 1, 40], [2]], depths=3)
    assert shares[:3] == [0.4, 0.2, 0.2]
    assert sum(shares) == pytest.approx(0.8)
    assert by_depth[0] == shares
    assert by_depth[1][:2] == [0.5, 0.5]
    assert by_depth[2][:2] == [0.0, 1.0]


def test_the_rank_of_each_token_of_an_answer() -> None:
    target = tiny_llama(0)
    (record,) = decode(
        parse_method("autoregressive"),
        (make_runner(target, 1, 64),) * 2,
        make_requests(random_prompts([7], 64), 20),
    ).values()
    draft = make_runner(disturbed(target, 0.02), 1, 64)
    assert set(ranks_of(make_runner(target, 1, 64), record.prompt_ids, record.output_ids)) == {0}
    results = ranks_of(draft, record.prompt_ids, record.output_ids)
    assert len(results) == 20
    assert 0 in results
    assert max(results) > 0


def table(**changed: object) -> RankTable:
    shares = (0.6, 0.2)
    return RankTable(
        **{"pair": PAIR, "temperature": 0.0, "shares": shares, "by_depth": (shares,), "count": 9}
        | changed
    )  # type: ignore[arg-type]


def test_a_table_is_found_by_pair_and_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    with pytest.raises(
        SkitError,
        match="sequoia: rank-wise acceptance of this pair at temperature 0 was not measured",
    ):
        parse_method("sequoia").prepare(ENVIRONMENT)
    path = save(table())
    assert find(PAIR, 0.0) == table()
    assert find(PAIR, 1.0) is None
    method = parse_method("sequoia:size=4").prepare(ENVIRONMENT)
    assert method.uses()["ranks"] == {"shares": (0.6, 0.2), "count": 9}
    assert parse_method(f"sequoia:ranks={path}").prepare(ENVIRONMENT).uses() == method.uses()


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 9}', "broken"])
def test_a_table_that_is_none_is_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    path.write_text(content)
    with pytest.raises(SkitError, match="not a table of this kit") as refused:
        load(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(SkitError, match=r"cannot be read \(No such file or directory\)"):
        load(tmp_path / "missing.json")


def test_shares_have_to_be_chances(tmp_path: Path) -> None:
    path = save(table(), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "shares": [0.9, 0.9]}))
    with pytest.raises(SkitError, match="its shares are not probabilities of ranks"):
        load(path)


def test_a_tree_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(
        SkitError,
        match="there is no tree of 2 nodes on 1 levels with 3 children at most: allow more",
    ):
        fastest((0.5, 0.2, 0.1), (2,), 1, 0.001, lambda _: 0.01)
