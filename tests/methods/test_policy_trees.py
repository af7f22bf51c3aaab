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
from specbench_kit.decoding.latency import TableModel
from specbench_kit.methods.base import Latencies
from specbench_kit.methods.opt_tree import OptTree, _OptTreePolicy
from specbench_kit.methods.sequoia import _SequoiaPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.static_tree import TreeShape, TreeShapes, fastest
from specbench_kit.predictors.ranks import RankTable, count_ranks, find, load, save
from specbench_kit.studies.recording.ranks import ranks_of

LEAF = TreeShape()
CHAIN = TreeShape((TreeShape((TreeShape((LEAF,)),)),))
FORK = TreeShape((TreeShape((LEAF,)), LEAF))
CHANCES = (0.6, 0.2)


def draft_with(table: dict[tuple[int, ...], list[float]], policy: _OptTreePolicy | _SequoiaPolicy) -> Draft:
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
    assert sorted(tuple(draft.tree.tokens[n] for n in draft.tree.path(node)) for node in chosen) == kept


def test_what_a_shape_is_expected_to_give() -> None:
    assert CHAIN.expected(CHANCES) == pytest.approx(2.176)
    assert FORK.expected(CHANCES) == pytest.approx(2.16)
    assert (CHAIN.size, CHAIN.levels, FORK.size, FORK.levels) == (4, 4, 4, 3)


def test_the_best_tree_of_every_size() -> None:
    results = TreeShapes(CHANCES, 8, 5)
    assert results.shape(4, 4) == CHAIN
    assert results.shape(4, 3) == FORK
    assert results.expected(4, 4) == pytest.approx(2.176)
    assert results.expected(4, 1) == float("-inf")
    for size in range(1, 9):
        for levels in range(1, 6):
            if results.expected(size, levels) > 0:
                shape = results.shape(size, levels)
                assert shape.size == size
                assert shape.levels <= levels
                assert shape.expected(CHANCES) == pytest.approx(results.expected(size, levels))
                best = max(tree.expected(CHANCES) for tree in all_trees(size, levels))
                assert results.expected(size, levels) == pytest.approx(best)


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
    assert [(levels + 11) / shape.expected(CHANCES) for levels, shape in ((4, CHAIN), (3, FORK))] == pytest.approx(
        [6.8934, 6.4815], abs=1e-4
    )
    assert fastest(CHANCES, (4,), 4, 1.0, lambda _: 11.0) == FORK
    assert fastest(CHANCES, (1, 2, 4), 4, 0.01, lambda size: float(size)) == LEAF


def test_sequoia_drafts_its_tree_with_the_likeliest_tokens() -> None:
    policy = _SequoiaPolicy(CHANCES, (4,), 4, Latencies(TableModel((1.0,)), TableModel((11.0,))))
    draft = draft_with(OPT, policy)
    assert policy.shape == FORK
    assert [tuple(draft.tree.tokens[n] for n in draft.tree.path(node)) for node in range(1, len(draft.tree))] == [
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
        parse_method("autoregressive"), (make_runner(target, 1, 64),) * 2, make_requests(random_prompts([7], 64), 20)
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
        **{"pair": PAIR, "temperature": 0.0, "shares": shares, "by_depth": (shares,), "count": 9} | changed
    )  # type: ignore[arg-type]


def test_a_table_is_found_by_pair_and_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    with pytest.raises(SkitError, match="sequoia: rank-wise acceptance of this pair at temperature 0 was not measured"):
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
    with pytest.raises(SkitError, match="there is no tree of 2 nodes on 1 levels with 3 children at most: allow more"):
        fastest((0.5, 0.2, 0.1), (2,), 1, 0.001, lambda _: 0.01)
