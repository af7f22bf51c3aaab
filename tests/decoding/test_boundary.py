"""What a policy may not do: each is one line that names the method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny_models import AUTOREGRESSIVE, decode, disturbed, make_requests, make_runner, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.boundary import CheckedLevels
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.base import Child, LevelPolicy, Method, Policy
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]
SAMPLED = Sampler(temperature=1.0)


def grow(drafter: Drafter) -> None:
    """Node 1 below the root, nodes 2 and 3 below node 1."""
    for draft in drafter.drafts:
        forward = drafter.expand([(draft, [0])])
        draft.tree.add(5, 0, forward, 0)
        below = drafter.expand([(draft, [1])])
        for token in (6, 7):
            draft.tree.add(token, 1, below, 0)


def extend(drafter: Drafter) -> None:
    for _ in range(2):
        drafter.extend(drafter.drafts)


def expand_unknown(drafter: Drafter) -> None:
    drafter.expand([(drafter.drafts[0], [4])])


def expand_orphan(drafter: Drafter) -> None:
    grow(drafter)
    draft = drafter.drafts[0]
    forward = drafter.expand([(draft, [2])])
    child = draft.tree.add(8, 3, forward, 0)
    drafter.expand([(draft, [child])])


def expand_twice(drafter: Drafter) -> None:
    grow(drafter)
    drafter.expand([(drafter.drafts[0], [1])])


def add_nowhere(drafter: Drafter) -> None:
    draft = drafter.drafts[0]
    draft.tree.add(5, 3, drafter.expand([(draft, [0])]), 0)


def draw_siblings(drafter: Drafter) -> None:
    drafter.extend(drafter.drafts)
    tree = drafter.drafts[0].tree
    tree.add(5, 0, *tree.source(1))


def draw_then_expand(drafter: Drafter) -> None:
    drafter.extend(drafter.drafts)
    draft = drafter.drafts[0]
    draft.tree.add(5, 1, drafter.expand([(draft, [1])]), 0)


@dataclass(frozen=True)
class Faulty(Method):
    """Drafts and chooses as it is told."""

    display_name = "faulty"
    grows: Callable[[Drafter], None] = grow
    chosen: Sequence[Sequence[int]] | None = None
    kept: int | None = None

    def policy(self) -> Policy:
        return _FaultyPolicy(self)


@dataclass
class _FaultyPolicy(Policy):
    options: Faulty

    def draft(self, drafter: Drafter) -> None:
        self.options.grows(drafter)

    def choose(self, drafts: Sequence[Draft]) -> list[list[int]]:
        return (
            super().choose(drafts)
            if self.options.chosen is None
            else [list(nodes) for nodes in self.options.chosen]
        )

    def next_root(self, verdict: Verdict) -> int | None:
        return self.options.kept


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 2, 60), make_runner(disturbed(target, 0.01), 2, 60)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Faulty(chosen=[[2]]), "choose gave node 2 without its parent, node 1: give parents first"),
        (
            Faulty(chosen=[[2, 1]]),
            "choose gave node 2 before its parent, node 1: give parents first",
        ),
        (Faulty(chosen=[[1, 1]]), "choose gave node 1 twice"),
        (Faulty(chosen=[[1, 4]]), "choose gave node 4 of a tree whose nodes are 1 to 3"),
        (Faulty(chosen=[[0]]), "choose gave node 0 of a tree whose nodes are 1 to 3"),
        (Faulty(chosen=[[-1]]), "choose gave node -1 of a tree whose nodes are 1 to 3"),
        (Faulty(chosen=[]), "choose gave 0 lists of nodes for 1 requests: give one for each"),
        (
            Faulty(chosen=[[1], [1]]),
            "choose gave 2 lists of nodes for 1 requests: give one for each",
        ),
        (Faulty(expand_unknown), "node 4 was expanded in a tree whose nodes are 0 to 0"),
        (Faulty(expand_orphan), "node 4 was expanded before its parent, node 3"),
        (Faulty(expand_twice), "node 1 was expanded twice"),
        (Faulty(add_nowhere), "a child was added to node 3 of a tree whose nodes are 0 to 0"),
        (
            Faulty(kept=3),
            "next_root gave node 3, which is not the bonus token after the accepted tokens",
        ),
        (
            Faulty(kept=9),
            "next_root gave node 9, which is not the bonus token after the accepted tokens",
        ),
    ],
)
def test_what_cannot_be_is_one_line(method: Method, said: str, runners: Runners) -> None:
    with pytest.raises(SkitError) as raised:
        decode(method, make_pair(runners), make_requests([[1, 2, 3]], 4))
    assert str(raised.value) == f"faulty: {said}"


def make_pair(runners: Runners) -> Runners:
    """Fresh slots over the same models, since an error leaves requests behind."""
    return Runner(runners[0].executor), Runner(runners[1].executor)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            Faulty(draw_siblings),
            "tokens drawn at random can only be verified as a chain: a tree needs those of expand",
        ),
        (
            Faulty(draw_then_expand),
            "some nodes were drawn at random and others not: no rule verifies both in one draft",
        ),
    ],
)
def test_a_draft_that_no_rule_verifies_is_one_line(
    method: Method, said: str, runners: Runners
) -> None:
    with pytest.raises(SkitError) as raised:
        decode(method, make_pair(runners), make_requests([[1, 2, 3]], 4), sampler=SAMPLED)
    assert str(raised.value) == f"faulty: {said}"
    assert decode(method, make_pair(runners), make_requests([[1, 2, 3]], 4)), (
        "greedy drafts are not drawn"
    )


class _Levels(LevelPolicy):
    def __init__(self, *children: Child) -> None:
        self.children = children

    def next_level(
        self, probabilities: torch.Tensor, scores: Sequence[float], room: int
    ) -> list[Child]:
        return list(self.children)


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ([Child(0, 1, 0.0)] * 3, "next_level gave more than the 2 nodes that there is room for"),
        ([Child(2, 1, 0.0)], "next_level gave a child of node 2 of a level of 2"),
        ([Child(-1, 1, 0.0)], "next_level gave a child of node -1 of a level of 2"),
        ([Child(1, 5, 0.0)], "next_level gave token 5 of a vocabulary of 5"),
    ],
)
def test_a_level_that_cannot_be_fed_is_one_line(children: list[Child], said: str) -> None:
    with pytest.raises(SkitError) as raised:
        CheckedLevels(_Levels(*children), "pipes").next_level(torch.zeros(2, 5), [0.0, 0.0], room=2)
    assert str(raised.value) == f"pipes: {said}"


@dataclass(frozen=True)
class Mistaken(Method):
    """Gives the wrong kind of policy."""

    gives: object = field(default_factory=LevelPolicy)

    def policy(self) -> Any:
        return self.gives


def test_the_wrong_kind_of_policy_is_one_line(runners: Runners) -> None:
    with pytest.raises(
        SkitError,
        match=r"^Mistaken: policy\(\) must return a Policy, since the method has no pipeline$",
    ):
        decode(Mistaken(), runners, [])


@pytest.mark.parametrize(
    "spec",
    [
        "specedge:depth=3,budget=6",
        "threshold:schedule=heuristic-transient,adaptive=true",
        "fixed-k",
    ],
)
def test_a_request_may_come_again_under_its_id(spec: str, runners: Runners) -> None:
    """The engine's policy has seen the request before: the second time is like the first."""
    target = tiny_llama(0)
    agreeing = make_runner(target, 1, 60), make_runner(disturbed(target, 0.001), 1, 60)
    engine = local_loop(parse_method(spec), *agreeing, setup=DecodingSetup())
    counts = []
    for length in (3, 4, 5, 14, 14):
        (request,) = make_requests([[1, 2, 3]], length)
        engine.submit(request)
        records = []
        while not engine.idle:
            records += engine.step()
        counts.append([(step.drafted, step.accepted, step.reused) for step in records[0].rounds])
        assert len(records[0].output_ids) == length
        plain = decode(AUTOREGRESSIVE, runners, make_requests([[1, 2, 3]], length))
        assert records[0].output_ids == plain["000"].output_ids
    assert counts[-1] == counts[-2]
