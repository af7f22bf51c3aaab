"""What the requests of a batch share under a deployment, and what each pays for alone, in milliseconds by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from known_drafts import SURE, Known, KnownDrafter
from msgspec.structs import replace as replace_fields
from test_shares_of_a_batch import HEADER, SCENE, trace

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafter import Drafter
from specbench_kit.decoding.latency import Row, TableModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import Colocated
from specbench_kit.deployments.timelines import Timelines
from specbench_kit.methods.base import Method, Policy
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Placement
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace

ON_SERVER = replace(SCENE, placement="server", predictor_s=None)
WITH_BYTES = replace(SCENE, link=replace(SCENE.link, draft_bytes=16.0))
"""A drafted token takes 4 + 16 bytes on the way up, which is 50 ms at 400 bytes per second."""


def rounds(
    deployment: Deployment, *traces: RequestTrace, method: str = "fixed-k:k=3", size: int = 1
) -> list[RequestRecord]:
    records = replay(parse_method(method), HEADER, traces, deployment=deployment, batch_size=size)
    return sorted(records, key=lambda record: record.request_id)


def total_ms(records: list[RequestRecord], phase: str, number: int = 0) -> float:
    return 1000 * sum(getattr(record.rounds[number], f"{phase}_s") for record in records)


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_bytes_beside_a_draft_token_are_sent_for_all_that_is_submitted(
    right: int, size: int
) -> None:
    """Three drafted tokens take 3 x 40 ms more, accepted or not, alone and in a batch; none are sent from a server."""
    pair = [trace(name, 4, [right, 0, 0, 0, 0, 0], [3] * 6) for name in "ab"]
    plain, heavy = (rounds(deployment, *pair, size=size) for deployment in (SCENE, WITH_BYTES))
    assert [record.rounds[0].accepted for record in heavy] == [right] * 2
    assert total_ms(heavy, "link") - total_ms(plain, "link") == pytest.approx(2 * 3 * 40)
    assert 1000 * (heavy[0].rounds[0].end_s - plain[0].rounds[0].end_s) == pytest.approx(3 * 40)
    near, near_heavy = (
        rounds(replace(where, placement="server"), *pair, size=size)
        for where in (SCENE, WITH_BYTES)
    )
    assert near_heavy == near


def test_a_batch_queues_for_as_long_as_all_its_requests_wait() -> None:
    """Prompts of 4, 9 and 14 tokens are there at 12 + 30 + 50 + 70 ms and so on: 65 and 130 ms before the last one."""
    traces = [trace(name, length, [0], [3]) for name, length in (("a", 4), ("b", 9), ("c", 14))]
    # Each 5 tokens more take 5 ms of prefill and 50 ms on the way up.
    records = rounds(SCENE, *traces, size=3)
    assert total_ms(records, "queue") == pytest.approx(110 + 55)


def test_a_prompt_on_a_shared_drafter_holds_the_others_up() -> None:
    """The prompts are read one after the other, and a's first step waits for b's prompt as well."""
    traces = [trace("a", 4, [0, 0], [3, 3]), trace("b", 9, [0], [3])]
    method = FixedK(1)
    alone = list(replay(method, HEADER, traces[:1], deployment=ON_SERVER, batch_size=2))
    # a alone: prompt 9 + 3 and one step 9 + 1, up 4 tokens 90, verification 100 + 10 x 5, down one token 70.
    assert 1000 * alone[0].rounds[0].end_s == pytest.approx(12 + 10 + 90 + 150 + 70)
    records = sorted(
        replay(method, HEADER, traces, deployment=ON_SERVER, batch_size=2),
        key=lambda record: record.request_id,
    )
    # Both: prompts 12 and 17, a step over two tokens 9 + 2, up 9 tokens 140, verification 100 + 10 x (5 + 10), down 70.
    assert [1000 * record.rounds[0].end_s for record in records] == pytest.approx(
        [12 + 17 + 11 + 140 + 250 + 70] * 2
    )


class _OneByOne(Policy):
    """Drafts a token for the first request, and then one for the second."""

    def draft(self, drafter: Drafter) -> None:
        for draft in drafter.drafts:
            drafter.extend([draft])


@dataclass(frozen=True)
class OneByOne(Method):
    def policy(self) -> Policy:
        return _OneByOne()


def test_a_shared_drafter_works_for_one_request_after_the_other() -> None:
    """a: prompt 12 and a step 10. b: prompt 17 and a step 10 after that, up 9 tokens 140, 15 verified 250, down 70."""
    traces = [trace("a", 4, [0], [3]), trace("b", 9, [0], [3])]
    near, far = (
        list(replay(OneByOne(), HEADER, traces, deployment=deployment, batch_size=2))
        for deployment in (ON_SERVER, SCENE)
    )
    assert [1000 * record.rounds[0].end_s for record in near] == pytest.approx(
        [12 + 10 + 17 + 10 + 140 + 250 + 70] * 2
    )
    # At the edge each has a device of its own, and b's draft token goes up too.
    assert [1000 * record.rounds[0].end_s for record in far] == pytest.approx(
        [17 + 10 + 150 + 250 + 70] * 2
    )


def test_requests_draw_jitter_of_their_own() -> None:
    """Two requests that ask the same at the same time have their messages delayed differently."""
    jittery, timeline = replace(SCENE, link=replace(SCENE.link, jitter_s=0.04)), Timeline()
    traces = [trace(name, 4, [0, 0, 0], [3] * 3) for name in "ab"]
    list(replay(FixedK(1), HEADER, traces, deployment=jittery, batch_size=2, timeline=timeline))
    delays = {
        name: [
            span.end_s - span.start_s for span in timeline.spans if span.resource == f"link/{name}"
        ]
        for name in ("a", "b")
    }
    assert len(delays["a"]) == len(delays["b"]) == 6
    assert all(a != pytest.approx(b) for a, b in zip(delays["a"], delays["b"], strict=True))


@pytest.mark.parametrize("deployment", [SCENE, ON_SERVER])
@pytest.mark.parametrize("method", ["fixed-k:k=2", "autoregressive"])
def test_an_end_that_is_the_deployment_itself_takes_the_same_time(
    deployment: Deployment, method: str
) -> None:
    """Also for who joins later, whose arrival moves back by its messages."""
    traces = [
        trace(name, 4, [0] * length, [3] * length)
        for name, length in (("a", 1), ("b", 5), ("c", 2), ("d", 3))
    ]
    records = replay(
        parse_method(method),
        HEADER,
        traces,
        deployment=deployment,
        batch_size=2,
        ends=[deployment] * 2,
    )
    for record in records:
        assert record.ends_s == pytest.approx([record.e2e_s] * 2)


class Rounds:
    """Rounds of requests with contexts of four tokens, under the timelines of a deployment."""

    def __init__(self, timelines: Timelines, requests: int = 2) -> None:
        self.timelines, self.clock = timelines, timelines.clock
        self.drafts = KnownDrafter([[SURE]] * requests, context=4).drafts
        self.begun = 0

    def verify(self, submitted: Sequence[list[int]], begin: bool = True) -> dict[str, float]:
        """Verify such nodes of the first requests, all of which are accepted; return the milliseconds of each phase."""
        drafts = self.drafts[: len(submitted)]
        for draft in drafts[self.begun :]:
            self.timelines.admit(draft.session)
        self.begun = max(self.begun, len(drafts))
        if begin:
            self.timelines.begin(drafts)
        verdicts = [
            Verdict(draft, nodes, nodes, 7, 1)
            for draft, nodes in zip(drafts, submitted, strict=True)
        ]
        self.timelines.verify(verdicts)
        for verdict in verdicts:
            self.timelines.verified(verdict)
        return {phase: 1000 * seconds for phase, seconds in self.clock.take().items()}


def edge(deployment: Deployment = SCENE) -> Rounds:
    return Rounds(Timelines(deployment, ModelledClock(), on_edge=True, learned=False))


def test_a_verification_with_any_prompt_in_it_is_no_guide_to_later_ones() -> None:
    """First the prompt of one request, then that of another beside it, then one token of each: 100 + 2 x 10."""
    rounds_of = edge()
    rounds_of.verify([[]])
    rounds_of.verify([[], []])
    assert rounds_of.clock.typical_s("verify") == 0
    rounds_of.verify([[], []])
    assert 1000 * rounds_of.clock.typical_s("verify") == pytest.approx(120)


def test_the_server_verifies_one_batch_after_the_other() -> None:
    """Two prompts of four tokens arrive together and are verified one by one, each in 100 + 4 x 10."""
    rounds_of = edge()
    for draft in rounds_of.drafts:
        rounds_of.timelines.admit(draft.session)
    rounds_of.timelines.begin(rounds_of.drafts)
    queues_ms = []
    for draft in rounds_of.drafts:
        rounds_of.timelines.verify([Verdict(draft, [], [], 7, 1)])
        queues_ms.append(1000 * rounds_of.clock.take().get("queue", 0.0))
    assert queues_ms == pytest.approx([0, 140])


def test_a_typical_draft_step_at_the_edge_is_that_of_one_device() -> None:
    """Two devices take 10 and 12 ms side by side: 22 in all, and 11 for one."""
    rounds_of = edge()
    for draft in rounds_of.drafts:
        rounds_of.timelines.admit(draft.session)
    rounds_of.timelines.forward("draft", {"0": (1, 3), "1": (3, 3)}, SCENE.drafter.latency)
    assert 1000 * rounds_of.clock.typical_s("draft") == pytest.approx(11)
    assert 1000 * rounds_of.clock.take()["draft"] == pytest.approx(22)


def test_a_server_that_goes_on_alone_waits_if_anybody_drafts() -> None:
    """A token up takes 60, none 50, and one or two down take 70 or 90."""
    rounds_of = edge()
    for draft in rounds_of.drafts:
        draft.tree.server_continues = True
        draft.tree.add(7, 0, Known(SURE), 0)
    rounds_of.verify([[1], [1]])
    assert rounds_of.verify([[], [1]])["link"] == pytest.approx(50 + 70 + 60 + 90)
    assert "link" not in rounds_of.verify([[], []])


@pytest.mark.parametrize(("kept", "ahead_ms"), [(2, 21), (None, 0)])
def test_beside_the_target_all_that_was_drafted_ahead_is_drafted_after_the_answer(
    kept: int | None, ahead_ms: int
) -> None:
    """Two requests, each with a token that is sent and one that is drafted ahead, and 5 ms per decision.

    Prompts 2 x 12, a step over two tokens 11 and two decisions 10: 45. Up 90, ten tokens verified 200, down 90: 425.
    Ahead are a step 11 and two decisions 10, where the answer was guessed; else nobody drafts that. Two tokens verified
    120.
    """
    colocated = Colocated(SCENE, learned=True)
    rounds_of = Rounds(colocated)
    drafts = rounds_of.drafts
    for draft in drafts:
        colocated.admit(draft.session)
        draft.tree.add(7, 0, Known(SURE), 0)
    rounds_of.begun = len(drafts)
    colocated.begin(drafts)
    colocated.draft([(draft, [0]) for draft in drafts])
    rounds_of.verify([[1], [1]], begin=False)
    assert 1000 * colocated.clock.now_s() == pytest.approx(425)
    colocated.draft([(draft, [1]) for draft in drafts])
    for draft in drafts:
        draft.tree.add(7, 1, Known(SURE), 0)
        colocated.drafted(draft, [1], kept)
    rounds_of.verify([[], []])
    for draft in drafts:
        colocated.release(draft.session)
    records = [draft.session.record for draft in drafts]
    assert [1000 * (record.colocated_s or 0.0) for record in records] == pytest.approx(
        [425 + ahead_ms + 120] * 2
    )
    assert [1000 * (record.colocated_draft_s or 0.0) for record in records] == pytest.approx(
        [(45 + ahead_ms) / 2] * 2
    )


def test_a_device_that_drafts_past_the_answer_begins_its_next_round_when_it_is_done() -> None:
    """The answer is there at 50 + 100 + 4 x 10 + 40 + 70 = 300; the device drafts ahead until 9 + 391 = 400.

    The answer's tokens do not wait for the device, and the next round, which drafts nothing, leaves it at 400.
    """
    answers_ms = {}
    for ahead in (0, 391):
        rounds_of = edge()
        (draft, _) = rounds_of.drafts
        timelines, clock = rounds_of.timelines, rounds_of.clock
        timelines.admit(draft.session)
        timelines.begin([draft])
        verdict = Verdict(draft, [], [], 7, 1)
        timelines.verify([verdict])
        assert timelines.awaits_answer(draft)
        if ahead:
            timelines.forward("draft", {"0": (ahead, 3)}, SCENE.drafter.latency)
            assert not timelines.awaits_answer(draft)
        timelines.verified(verdict)
        assert 1000 * clock.now_s() == pytest.approx(300)
        timelines.begin([draft])
        timelines.verify([verdict])
        timelines.verified(verdict)
        answers_ms[ahead] = 1000 * clock.now_s()
    assert answers_ms[391] - answers_ms[0] == pytest.approx(100)


@dataclass(frozen=True)
class Judged(FixedK):
    """Looks at every token with a predictor, which takes 3 ms unless the deployment says how long."""

    learned = True

    @property
    def decision_s(self) -> float:
        return 0.003


@pytest.mark.parametrize("kind", [FixedK, Judged])
@pytest.mark.parametrize("placement", ["edge", "server"])
@pytest.mark.parametrize("drafter", ["model", "head"])
def test_requests_one_after_the_other_take_the_same_time_by_both_clocks(
    drafter: str, placement: Placement, kind: type[FixedK]
) -> None:
    """A timeline makes a replay go through the loop; without one, arrays of draft lengths and a clock of their own do.

    A head reads hidden states, 16 bytes per token here, which come down with every answer, and forwards accepted tokens
    again. Each request meets jitter of its own.
    """
    states = {"state_layers": (0, 1), "state_bytes": 8} if drafter == "head" else {}
    header = replace_fields(HEADER, drafter=drafter, **states)
    deployment, end = (
        replace(where, placement=placement, link=replace(where.link, jitter_s=0.04))
        for where in (WITH_BYTES, SCENE)
    )
    traces = [
        trace(name, 4 + 5 * number, [3, 0, 1, 2, 0, 3, 1, 0, 0], [3] * 9)
        for number, name in enumerate("abc")
    ]
    method = kind(3, drafter=drafter)
    fast = list(replay(method, header, traces, deployment=deployment, ends=[end]))
    looped = list(
        replay(method, header, traces, deployment=deployment, ends=[end], timeline=Timeline())
    )
    assert fast == looped
    assert {record.request_id for record in fast} == {"a", "b", "c"}


def test_a_decision_takes_what_the_deployment_says_or_else_the_method() -> None:
    """The prompt of 4 tokens takes 12 ms, two steps 20 and two decisions 2 x 5 or 2 x 3: so long it drafts."""
    for predictor_s, decision_ms in ((0.005, 5), (None, 3)):
        deployment = replace(SCENE, predictor_s=predictor_s)
        (record,) = replay(Judged(2), HEADER, [trace("a", 4, [0], [3])], deployment=deployment)
        assert total_ms([record], "policy") == pytest.approx(2 * decision_ms)
        assert 1000 * (record.colocated_draft_s or 0.0) == pytest.approx(12 + 20 + 2 * decision_ms)


@pytest.mark.parametrize(("on_edge", "reached"), [(True, [1]), (False, [1, 2])])
def test_a_token_has_reached_the_server_when_it_has_crossed_the_link(
    on_edge: bool, reached: list[int]
) -> None:
    """Tokens are known at 22 and 100 ms; up takes 50 ms and 10 more per token; a verification ends at 110 ms.

    Beside the target there is no link to cross. A third token is not drafted yet.
    """
    timelines = Timelines(SCENE, ModelledClock(), on_edge=on_edge, learned=False)
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    timelines.admit(draft.session)
    for node in range(3):
        draft.tree.add(7, node, Known(SURE), 0)
    timelines._requests["0"].forwarded_s = {0: 0.022, 1: 0.100}
    timelines._verified_s = 0.110
    assert [node for node in (1, 2, 3) if timelines.has_reached_server(draft, node)] == reached


def test_prompts_that_are_cached_are_not_forwarded_by_any_model() -> None:
    """A drafter that reports its forwards reports those of prompts too."""
    timelines = Timelines(
        replace(SCENE, cached_prompts=True), ModelledClock(), on_edge=True, learned=False
    )
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    timelines.admit(draft.session)
    for phase in ("prefill", "draft"):
        timelines.forward(phase, {"0": (1, 3)}, SCENE.drafter.latency)  # type: ignore[arg-type]
    assert {phase: 1000 * seconds for phase, seconds in timelines.clock.take().items()} == {
        "draft": pytest.approx(10)
    }


def test_what_is_drafted_while_the_target_verifies_is_shown_as_proactive() -> None:
    timelines, timeline = Timelines(SCENE, ModelledClock(), on_edge=True, learned=True), Timeline()
    timelines.clock.timeline = timeline
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    timelines.admit(draft.session)
    timelines.begin([draft])
    timelines.draft([(draft, [0])])
    with timelines.clock.overlap():
        timelines.forward("draft", {"0": (1, 4)}, SCENE.drafter.latency)
    found = [(span.resource, span.label) for span in timeline.spans]
    assert found == [("edge/0", label) for label in ("prefill", "draft", "policy", "proactive")]


@dataclass(frozen=True)
class Recorded(TableModel):
    """Remembers what was in each batch."""

    batches: list[list[Row]] = field(default_factory=list)

    def seconds(self, rows: Sequence[Row]) -> float:
        self.batches.append(list(rows))
        return super().seconds(rows)


@pytest.mark.parametrize(("kept", "cached"), [(2, 6), (None, 5)])
def test_what_is_kept_of_a_tree_stays_in_the_draft_models_kv(kept: int | None, cached: int) -> None:
    """Four tokens and two nodes below them are forwarded; one is accepted, and the other one stays if it was kept."""
    latency = Recorded((0.01,))
    rounds_of = edge(
        replace(SCENE, drafter=replace(SCENE.drafter, latency=latency), cached_prompts=False)
    )
    (draft, _) = rounds_of.drafts
    timelines = rounds_of.timelines
    timelines.admit(draft.session)
    timelines.begin([draft])
    for node in range(3):
        timelines.draft([(draft, [node])])
        draft.tree.add(7, node, Known(SURE), 0)
    timelines.drafted(draft, [1], kept)
    timelines.draft([(draft, [3])])
    assert latency.batches[-1][0][1] == cached
