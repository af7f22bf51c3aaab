"""Trees within their budget, guesses kept exactly where they were right, depths that fill the wait."""

from itertools import pairwise
from math import exp

import pytest
from environments import DEPLOYMENT
from known_drafts import TreeDrafter
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from tiny_predictors import PAIR

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.specedge import FIRST_DEPTH, SpecEdge, _SpecEdgePolicy, calibrated_depth
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 3, 260), make_runner(disturbed(target, 0.004), 3, 260)


def rounds_of(records: dict[str, RequestRecord]) -> list[RoundRecord]:
    return [step for record in records.values() for step in record.rounds]


@pytest.mark.parametrize(("rtt_s", "depth"), [(0.015, 7), (0.040, 5), (0.050, 4)])
def test_depth_fills_the_verification_less_the_round_trip(rtt_s: float, depth: int) -> None:
    assert calibrated_depth(0.0942, rtt_s, 0.011) == depth


def test_depth_is_calibrated_on_verifications_without_a_prompt(runners: Runners) -> None:
    """Forwards of up to 100 tokens take 0.1 s, prompts 20 s; 8 levels fill the former, less the round trip."""
    verifier = Endpoint("server", TableModel((*[0.1] * 100, 20.0)))
    index = Deployment(
        "slow prompts", Endpoint("edge", TableModel((0.01,))), verifier, link=Link(rtt_s=0.02)
    )
    spec = parse_method("specedge:tree=chain,budget=200,proactive=false")
    requests = make_requests(random_prompts([200, 150, 180], 64), 20)
    first, *siblings = decode(spec, runners, requests, deployment=index).values()
    assert [step.deepest for step in first.rounds[:2]] == [FIRST_DEPTH, FIRST_DEPTH]
    assert {step.deepest for step in first.rounds[2:]} == {8}
    assert {step.deepest for record in siblings for step in record.rounds} == {8}


def test_depth_is_never_below_one() -> None:
    assert calibrated_depth(0.01, 0.2, 0.011) == 1


def test_a_tree_never_exceeds_its_budget_and_beats_a_chain(runners: Runners) -> None:
    requests = make_requests(random_prompts([3, 9, 30], 64), 60)
    small = decode(
        parse_method("specedge:budget=9,beams=4,branch=3,depth=4"), runners, requests, batch_size=3
    )
    tree = decode(
        parse_method("specedge:budget=40,beams=16,branch=4,depth=4"),
        runners,
        requests,
        batch_size=3,
    )
    chain = decode(parse_method("fixed-k:k=4"), runners, requests, batch_size=3)
    assert max(step.submitted for step in rounds_of(small)) == 9
    assert max(step.submitted for step in rounds_of(tree)) == 40
    assert len(rounds_of(tree)) < len(rounds_of(chain))
    assert outputs(small) == outputs(tree) == outputs(chain)


def test_what_was_drafted_ahead_is_kept_where_the_guess_was_right(runners: Runners) -> None:
    requests = make_requests(random_prompts([3, 9, 30], 64), 80)
    records = decode(parse_method("specedge:tree=chain,depth=2"), runners, requests, batch_size=3)
    assert outputs(records) == outputs(decode(AUTOREGRESSIVE, runners, requests, batch_size=3))
    aligned = reused = 0
    for record in records.values():
        assert record.rounds[0].reused == 0
        for before, after in pairwise(record.rounds):
            assert after.reused <= after.accepted
            assert not after.reused or before.aligned
            assert not before.aligned or before.accepted == before.submitted
            aligned, reused = aligned + before.aligned, reused + after.reused
    assert aligned > 3
    assert reused > 3


def test_what_is_drafted_ahead_decays_by_095_and_counts_the_guess() -> None:
    """After the guess 3 come .5 and .46, then .97: .95 x .95 x .5 x .97 = .4377 is above .95 x .46 = .437.

    With the .9 of the round's own tree, .3929 would be below .414. The guess itself is one of the three tokens.
    """
    policy = _SpecEdgePolicy(SpecEdge(budget=3, depth=1, proactive_depth=2))
    drafter = TreeDrafter([[]])
    drafter.table = {
        (): [0.9, 0.05, 0.03, 0.01, 0.01],
        (0,): [0.01, 0.01, 0.01, 0.96, 0.01],
        (0, 3): [0.5, 0.46, 0.02, 0.01, 0.01],
        (0, 3, 0): [0.97, 0.01, 0.01, 0.005, 0.005],
    }
    policy.draft(drafter)  # type: ignore[arg-type]
    policy.overlap(drafter)  # type: ignore[arg-type]
    guess = policy.guesses["0"]
    tree = guess.draft.tree
    assert [
        [tree.tokens[n] for n in tree.path(node)] for node in (guess.root, *guess.selected)
    ] == [
        [0, 3],
        [0, 3, 0],
        [0, 3, 0, 0],
    ]
    assert [exp(guess.scores[node]) for node in guess.selected] == pytest.approx([0.475, 0.4377125])


@pytest.mark.parametrize(("kind", "deepest"), [("excluded", 3), ("included", 2)])
def test_levels_drafted_ahead_may_count_in_the_next_round(
    kind: str, deepest: int, runners: Runners
) -> None:
    """A level that was kept and two of the round; as `included`, the kept one and one of the round."""
    requests = make_requests(random_prompts([3, 9, 30], 64), 60)
    spec = f"specedge:tree=chain,depth=2,proactive_depth=1,proactive_type={kind}"
    records = decode(parse_method(spec), runners, requests, batch_size=3)
    assert outputs(records) == outputs(decode(AUTOREGRESSIVE, runners, requests, batch_size=3))
    depths: dict[bool, set[int]] = {True: set(), False: set()}
    for record in records.values():
        for before, after in pairwise(record.rounds[:-3]):
            depths[before.aligned].add(after.deepest)
    assert depths == {True: {deepest}, False: {2}}


def test_a_budget_of_one_token_leaves_room_for_the_guess_alone(runners: Runners) -> None:
    requests = make_requests(random_prompts([3, 9], 64), 40)
    rounds = rounds_of(decode(parse_method("specedge:budget=1,depth=2"), runners, requests))
    assert {step.submitted for step in rounds} <= {0, 1}
    assert {step.proactive for step in rounds} <= {0, 1}


def test_a_server_tree_has_64_nodes_as_in_the_authors_example() -> None:
    """The value of max_budget in their config/server_only.example.yaml; it is 32 in that of SpecEdge."""
    assert (parse_method("server-tree").budget, parse_method("specedge").budget) == (64, 32)  # type: ignore[attr-defined]


def test_without_proactive_drafting_nothing_is_drafted_ahead(runners: Runners) -> None:
    requests = make_requests(random_prompts([3, 9], 64), 40)
    rounds = rounds_of(decode(parse_method("specedge:proactive=false,depth=3"), runners, requests))
    assert all(step.proactive == step.reused == 0 and not step.aligned for step in rounds)


def timed(spec: str, runners: Runners) -> RequestRecord:
    requests = make_requests(random_prompts([5], 64), 40)
    (record,) = decode(parse_method(spec), runners, requests, deployment=DEPLOYMENT).values()
    return record


def test_ahead_is_drafted_while_the_answer_is_on_its_way(runners: Runners) -> None:
    """The deployment's drafter needs about 1 ms a step and its verifier with the link over 20 ms."""
    times = {}
    for proactive in ("true", "false"):
        rounds = timed(f"specedge:depth=3,budget=8,proactive={proactive}", runners).rounds
        times[proactive] = rounds[-1].end_s / len(rounds)
        assert any(step.proactive for step in rounds) == (proactive == "true")
    assert times["true"] == pytest.approx(times["false"], rel=0.05)


def test_a_layer_split_is_plain_decoding_with_a_round_trip_per_token(runners: Runners) -> None:
    plain, split = timed("autoregressive", runners), timed("layer-split", runners)
    assert split.output_ids == plain.output_ids
    per_token = [
        [step.end_s - before.end_s for before, step in pairwise(record.rounds)]
        for record in (plain, split)
    ]
    assert [
        split_s - plain_s for plain_s, split_s in zip(*per_token, strict=True)
    ] == pytest.approx([DEPLOYMENT.link.rtt_s] * 39)


def test_a_server_tree_takes_the_same_rounds_and_crosses_the_link_once(runners: Runners) -> None:
    options = "depth=3,budget=8"
    edge, server = (
        timed(f"specedge:{options},proactive=false", runners),
        timed(f"server-tree:{options}", runners),
    )
    assert [step.submitted for step in server.rounds] == [step.submitted for step in edge.rounds]
    assert sum(step.link_s for step in server.rounds) == pytest.approx(DEPLOYMENT.link.rtt_s)
    assert sum(step.link_s for step in edge.rounds) == pytest.approx(
        DEPLOYMENT.link.rtt_s * len(edge.rounds)
    )


@pytest.mark.parametrize("name", ["layer-split", "server-tree"])
def test_without_a_deployment_there_is_no_link_to_cross(name: str) -> None:
    with pytest.raises(
        SkitError, match=f"{name}: only a deployment models what it does: add --deployment NAME"
    ):
        parse_method(name).prepare(environment(PAIR, None))


def test_a_server_cannot_draft_while_it_verifies() -> None:
    with pytest.raises(SkitError, match="server-tree: the server cannot draft while it verifies"):
        parse_method("server-tree:proactive=true")


@pytest.mark.parametrize(
    "option", ["budget=0", "beams=0", "branch=0", "depth=0", "proactive_depth=0"]
)
def test_an_option_below_one_is_one_line(option: str) -> None:
    with pytest.raises(
        SkitError, match=rf"specedge: {option.split('=')[0]} must be .*at least 1, not 0"
    ):
        parse_method(f"specedge:{option}")


def test_a_depth_that_is_no_number_is_one_line() -> None:
    with pytest.raises(
        SkitError, match="specedge: depth must be a whole number or auto, not 'deep'"
    ):
        parse_method("specedge:depth=deep")
