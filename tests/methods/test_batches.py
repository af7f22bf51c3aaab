"""Policies over several requests: each has its own rows and room, and what is learned is learned from all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch
from environments import DEPLOYMENT
from known_drafts import KnownDrafter, TreeDrafter, at
from test_history_and_bandits import round_of
from tiny_models import (
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)

from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.latency import InteractionModel, TableModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.banditspec import BanditSpec, Ucb, _BanditSpecPolicy
from specbench_kit.methods.base import Latencies, Policy
from specbench_kit.methods.goodput import Goodput, _GoodputPolicy
from specbench_kit.methods.sglang_ema import SGLangEma, _SGLangEmaPolicy
from specbench_kit.methods.sglang_throughput import SGLangThroughput, _SGLangThroughputPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.ssd import Ssd, _SsdPolicy
from specbench_kit.methods.tapout import TapOut, _TapOutPolicy
from specbench_kit.methods.vllm_adaptive import VllmAdaptive, _VllmAdaptivePolicy
from specbench_kit.models.executors.base import Forward

ONE = at()
FREE = Latencies(TableModel((0.0,)), TableModel((1.0,)))
Table = dict[tuple[int, ...], list[float]]
SURE: Table = {(): [0.9, 0.04, 0.03, 0.02, 0.01], (0,): [0.85, 0.06, 0.04, 0.03, 0.02]}
UNSURE: Table = {
    (): [0.1, 0.12, 0.15, 0.3, 0.33],
    (4,): [0.05, 0.1, 0.5, 0.3, 0.05],
    (3,): [0.4, 0.3, 0.1, 0.1, 0.1],
}

LATER = [0.4, 0.25, 0.18, 0.12, 0.05]
"""Of all other texts, turned by what they say."""


@dataclass
class ApartDrafter(TreeDrafter):
    """Says something else for each request, which has room for so many nodes."""

    tables: Mapping[str, Table] = field(kw_only=True)
    rooms: Mapping[str, int] = field(kw_only=True)

    def room(self, draft: Draft) -> int:
        return self.rooms[draft.request_id] - draft.tree.last

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:  # type: ignore[override]
        rows = [self._row(draft, node) for draft, nodes in frontier for node in nodes]
        return DraftForward(Forward([torch.tensor(rows).log()]), Sampler(temperature=1.0))

    def _row(self, draft: Draft, node: int) -> list[float]:
        path = tuple(draft.tree.tokens[n] for n in draft.tree.path(node))
        turned = (int(draft.request_id) + sum(path)) % 5
        return self.tables[draft.request_id].get(path, LATER[turned:] + LATER[:turned])

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        grown = [draft for draft in drafts if self.room(draft) > 0]
        if grown:
            forward = self.expand([(draft, [draft.tree.last]) for draft in grown])
            for row, (draft, (token,)) in enumerate(zip(grown, forward.top_tokens(1), strict=True)):
                draft.tree.add(token, draft.tree.last, forward, row)
        return grown


TABLES = {"0": SURE, "1": UNSURE, "2": SURE}
ROOMS = {"0": 40, "1": 40, "2": 3}


def drafted(
    spec: str, names: Sequence[str], begun: Sequence[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return, by request, its tokens and parents, those that it sends, and how many are expected to be accepted.

    The requests that have `begun` bring one node along from the round before.
    """
    drafter = ApartDrafter([[]] * 3, tables=TABLES, rooms=ROOMS)
    drafter.drafts = [draft for draft in drafter.drafts if draft.request_id in names]
    for draft in drafter.drafts:
        if draft.request_id in begun:
            draft.tree.add(0, 0, drafter.expand([(draft, [0])]), 0)
    policy = parse_method(spec).policy()
    assert isinstance(policy, Policy)
    policy.draft(drafter)  # type: ignore[arg-type]
    return {
        draft.request_id: (
            draft.tree.tokens,
            draft.tree.parents,
            nodes,
            policy.expects(draft, nodes),
        )
        for draft, nodes in zip(drafter.drafts, policy.choose(drafter.drafts), strict=True)
    }


@pytest.mark.parametrize(
    "spec",
    [
        "opt-tree:nodes=6,gain=0.1",
        "eagle2-tree:total=8,depth=2,top_k=3",
        "specinfer:branching=1-3-2",
        "specedge:depth=3,budget=6,beams=3,proactive=false",
    ],
)
def test_a_tree_is_the_same_in_a_batch_as_alone(spec: str) -> None:
    """The requests have different distributions, and one has room for three nodes only."""
    together = drafted(spec, ["0", "1", "2"])
    alone = {name: drafted(spec, [name])[name] for name in TABLES}
    assert together == alone
    assert len(together["2"][0]) - 1 <= 3 < len(together["0"][0]) - 1
    assert together["0"][0] != together["1"][0]


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "fixed-k:k=3",
            "threshold:max_draft=5,threshold=0.3",
            "svip:max_draft=5",
            "adaedl:max_draft=5",
        ),
        *(
            "margin:max_draft=5",
            "entropy-change:max_draft=5",
            "tail-pruning:max_draft=6,block=2,threshold=0.3",
        ),
    ],
)
def test_a_chain_is_the_same_in_a_batch_as_alone(spec: str) -> None:
    assert drafted(spec, ["0", "1", "2"]) == {name: drafted(spec, [name])[name] for name in TABLES}


def drafted_ahead(
    spec: str, names: Sequence[str]
) -> dict[str, tuple[list[int], list[int], list[float]]]:
    """Return, by request, its tokens, their parents and probabilities, with what was drafted during verification."""
    drafter = ApartDrafter([[]] * 3, tables=TABLES, rooms=ROOMS | {"2": 12})
    drafter.drafts = [draft for draft in drafter.drafts if draft.request_id in names]
    policy = parse_method(spec).policy()
    assert isinstance(policy, Policy)
    policy.draft(drafter)  # type: ignore[arg-type]
    policy.choose(drafter.drafts)
    policy.overlap(drafter)  # type: ignore[arg-type]
    return {
        draft.request_id: (
            draft.tree.tokens,
            draft.tree.parents,
            [round(draft.tree.probability(node), 6) for node in range(1, len(draft.tree))],
        )
        for draft in drafter.drafts
    }


@pytest.mark.parametrize(
    ("spec", "sent"),
    [
        ("specinfer:branching=1-2,guesses=3", 3),
        ("ssd:k=2,guesses=2", 2),
        ("specedge:depth=2,budget=4,beams=2,proactive_depth=2", 4),
    ],
)
def test_what_is_drafted_ahead_is_the_same_in_a_batch_as_alone(spec: str, sent: int) -> None:
    together = drafted_ahead(spec, ["0", "1", "2"])
    assert together == {name: drafted_ahead(spec, [name])[name] for name in TABLES}
    assert all(len(tokens) - 1 > sent for tokens, _, _ in together.values())


def test_each_draft_a_batch_is_at_its_own_level_of_the_shape() -> None:
    """A request with a node of the round before gets three children where the others get one."""
    together = drafted("specinfer:branching=1-3-1", ["0", "1"], begun=["1"])
    assert together == {
        **drafted("specinfer:branching=1-3-1", ["0"]),
        **drafted("specinfer:branching=1-3-1", ["1"], begun=["1"]),
    }


def test_trees_have_no_token_beyond_their_number() -> None:
    for spec, nodes_allowed in (
        ("opt-tree:nodes=4,gain=0", 4),
        ("eagle2-tree:total=5,depth=3,top_k=4", 4),
        ("specedge:depth=3,budget=4,beams=4,proactive=false", 4),
        ("specinfer:branching=1-3-1", 1 + 3 + 3),
    ):
        for _, _, nodes, _ in drafted(spec, ["0", "1"]).values():
            assert len(nodes) == nodes_allowed, spec


@pytest.mark.parametrize("accepted", [[2, 0], [0, 2]])
def test_tapout_learns_the_mean_of_all_requests(accepted: list[int]) -> None:
    """Two of four drafted tokens are accepted, then none: a reward of (2/8 + 2/4) / 2 and of none."""
    policy = _TapOutPolicy(TapOut(arms="fixed-k.k=4+fixed-k.k=2"))
    round_of(policy, accepted)
    assert (policy.counts, policy.means) == ([1, 0], [pytest.approx(0.1875), 0.0])


@pytest.mark.parametrize("accepted", [[3, 0], [0, 3]])
def test_sglang_ema_averages_over_the_requests(accepted: list[int]) -> None:
    """From 2.0 a fifth of the way to 1.5."""
    policy = _SGLangEmaPolicy(SGLangEma())
    round_of(policy, accepted)
    assert policy.state(2).average == pytest.approx(1.9)


def verdicts_of(lengths: Sequence[int], accepted: Sequence[int]) -> list[Verdict]:
    """Return verdicts on chains of which so many tokens were sent and accepted."""
    return KnownDrafter([[ONE]] * len(lengths)).verdicts(
        [list(range(1, n + 1)) for n in lengths], accepted
    )


@pytest.mark.parametrize("accepted", [[0, 1, 2], [2, 1, 0]])
def test_goodput_counts_the_tested_tokens_of_all_requests(accepted: list[int]) -> None:
    """Three of six tested tokens are right: from .7 the average moves by .15 x (.5 - .7)."""
    policy = _GoodputPolicy(Goodput(), FREE)
    policy.observe(verdicts_of([3, 3, 3], accepted))
    assert policy.acceptance == pytest.approx(0.67)


def test_sglang_throughput_counts_only_those_who_sent_a_position() -> None:
    """The second request sent one token; of those who sent two, half had the second accepted."""
    policy = _SGLangThroughputPolicy(SGLangThroughput(), FREE)
    policy.observe(verdicts_of([3, 1, 2], [3, 1, 1]))
    assert [list(window) for window in policy.windows[:3]] == [[1.0], [0.5], [1.0]]


@pytest.mark.parametrize(("contexts", "verified"), [((10, 1000), 1), ((1000, 10), 2)])
def test_vllm_adaptive_pays_for_a_slot_by_the_request_that_gets_it(
    contexts: tuple[int, int], verified: int
) -> None:
    """A token after 999 others costs 1 s more, after 9 others 9 ms; the first request's token is the likelier one.

    Without drafts, two tokens take 2.008 s. Where the likely token is cheap, 2.9 take 2.017 s and 3.7 take 3.016 s;
    where it is not, 2.9 take 3.007 s, and with the other one 3.7 take 3.016 s.
    """
    drafter = KnownDrafter([[ONE]] * 2)
    for draft, context in zip(drafter.drafts, contexts, strict=True):
        draft.session.tokens = [1] * context
    policy = _VllmAdaptivePolicy(
        VllmAdaptive(), Latencies(TableModel((0.0,)), InteractionModel(0, 1e-3, 0, 1.0))
    )
    assert policy.count(drafter.drafts, [iter([0.9]), iter([0.8])]) == verified


def test_ssd_learns_from_all_requests() -> None:
    policy = _SsdPolicy(Ssd())
    policy.observe(verdicts_of([3, 3, 3], [0, 1, 3]))
    assert (policy.accepted, policy.rejected) == (4, 2)


def test_an_arm_learns_from_the_requests_that_it_drafted_for() -> None:
    """The first request plays its second arm while the second one begins with the first."""
    policy = _BanditSpecPolicy(BanditSpec(arms="adaedl+fixed-k.k=2", reward="length"))
    requests_by_arm: dict[int, list[str]] = {}
    for arm, own in enumerate(policy.policies):

        def observe(verdicts: Sequence[Verdict], arm: int = arm) -> None:
            requests_by_arm.setdefault(arm, []).extend(
                verdict.draft.request_id for verdict in verdicts
            )

        own.observe = observe  # type: ignore[method-assign]
    round_of(policy, [0])
    assert requests_by_arm == {0: ["0"]}
    requests_by_arm.clear()
    round_of(policy, [1, 0])
    assert requests_by_arm == {1: ["0"], 0: ["1"]}


def test_each_bandit_learns_of_the_arm_that_its_own_request_played() -> None:
    """The first request plays its second arm in the second round, and the new one its first."""
    policy = _BanditSpecPolicy(BanditSpec(arms="fixed-k.k=1+fixed-k.k=2", reward="length"))
    round_of(policy, [0])
    assert round_of(policy, [2, 1]) == [2, 1]
    learned = {
        name: (bandit.counts, bandit.means)
        for name, bandit in policy.bandits.items()
        if isinstance(bandit, Ucb)
    }
    assert learned == {"0": ([1, 1], [0.0, 0.5]), "1": ([1, 0], [0.25, 0.0])}


MODELS = [tiny_llama(0), disturbed(tiny_llama(0), 0.02), disturbed(tiny_llama(0), 0.03)]


@pytest.mark.parametrize("drafter", ["model", "cascade.second=smaller+k2=2"])
def test_sampled_rounds_do_not_depend_on_who_else_is_in_the_batch(drafter: str) -> None:
    """Every request draws its draft and its answer from numbers of its own, and each token keeps its distribution."""
    method, requests = (
        parse_method(f"fixed-k:k=4,drafter={drafter}"),
        make_requests(random_prompts([3, 9, 17], 64), 20),
    )

    def records(batch_size: int) -> dict[str, RequestRecord]:
        target, draft, smaller = (make_runner(model, batch_size, 80) for model in MODELS)
        engine = local_loop(
            method,
            target,
            draft,
            setup=DecodingSetup(sampler=Sampler(temperature=1.0), batch_size=batch_size),
            others={"smaller": smaller},
        )
        for request in requests:
            engine.submit(request)
        finished: dict[str, RequestRecord] = {}
        while not engine.idle:
            finished |= {record.request_id: record for record in engine.step()}
        return finished

    alone, together = records(1), records(3)
    assert outputs(together) == outputs(alone)
    for name, record in together.items():
        assert [step.accepted for step in record.rounds] == [
            step.accepted for step in alone[name].rounds
        ]


def test_forwards_of_a_drafter_with_two_models_take_time_at_the_ends_of_a_range_too() -> None:
    """Ends that are the deployment itself take as long as the run."""
    target, draft, smaller = (make_runner(model, 2, 80) for model in MODELS)
    engine = local_loop(
        parse_method("fixed-k:k=4,drafter=cascade.second=smaller+k2=2+second_s=0.002"),
        target,
        draft,
        setup=DecodingSetup(batch_size=2),
        deployment=DEPLOYMENT,
        ends=[DEPLOYMENT] * 2,
        others={"smaller": smaller},
    )
    for request in make_requests(random_prompts([3, 9, 17], 64), 8):
        engine.submit(request)
    while not engine.idle:
        for record in engine.step():
            assert record.ends_s == pytest.approx([record.e2e_s] * 2)
            assert sum(step.draft_s for step in record.rounds) > 0


def test_each_row_of_a_padded_batch_is_recorded_as_its_own() -> None:
    """The shape decides how a row is rounded: it names which of the rows it was, and how long they were."""
    model = tiny_llama(0)
    runners = make_runner(model, 3, 80, "llama-cpu"), make_runner(model, 3, 80, "llama-cpu")
    requests = make_requests(random_prompts([9, 9, 9], 64), 6)
    records = decode(parse_method("fixed-k:k=2"), runners, requests, batch_size=3)
    first = [list(islice(records[name].rounds[0].padded, 2)) for name in ("000", "001", "002")]
    assert first == [[3, 0], [3, 1], [3, 2]]
