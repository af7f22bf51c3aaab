"""The steps of a pipeline under a deployment, in milliseconds by hand: what requests share, and what delays nobody.

A stage takes half of 100 + 10 per new token, the drafter 9 + 1 per token, a message 50 + 10 per token up or 20 per
token down, a hand-over 10, pruning 2, and 3 for every request beyond the first.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from known_drafts import SURE, KnownDrafter
from test_shares_of_a_batch import SCENE

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.deployments.at_ends import PipelineTimeAtEnd, PipelineTimes
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.pipeline_time import PipelineTime
from specbench_kit.runs.deployment import HandOver
from specbench_kit.runs.document import HiddenStates

HAND_OVER = HandOver(0.010, prune_s=0.002, batching_s=0.003)
EDGE = replace(SCENE, verifier=replace(SCENE.verifier, stages=2, hand_over=HAND_OVER))
SERVER = replace(EDGE, placement="server")


def stream(slot: int, prompt: int) -> RequestStream:
    """Return a request with a prompt of so many tokens, none of which has entered."""
    sessions = [
        draft.session
        for draft in KnownDrafter([[SURE]] * (slot + 1), context=prompt, produced=0).drafts
    ]
    return RequestStream(sessions[slot], slot, stages=2, watched=False, began={})


def enter_prompts(time: PipelineTime | PipelineTimes, *streams: RequestStream) -> None:
    """Let the prompts enter the first stage in one piece."""
    for request_stream in streams:
        time.admit(request_stream.session)
        request_stream.take(512)
        request_stream.enter()


def one_behind_another(time: PipelineTime | PipelineTimes, prompt: int) -> list[RequestStream]:
    """Return a request with a prompt of so many tokens, in the second stage by now, and one of two about to enter."""
    streams = [stream(0, prompt)]
    enter_prompts(time, *streams)
    time.step(streams)
    streams[0].grow([])
    streams[0].enter()
    streams.append(stream(1, 2))
    enter_prompts(time, streams[1])
    return streams


def phases_ms(clock: ModelledClock) -> dict[str, float]:
    return {
        phase: pytest.approx(1000 * seconds) for phase, seconds in clock.take().items() if seconds
    }


@pytest.mark.parametrize("deployment", [EDGE, SERVER])
def test_prompts_that_enter_together_wait_for_the_longest_message(deployment: Deployment) -> None:
    """Prompts of 4 and 9 tokens: 13 tokens in a stage take 115 and in the drafter 22, the message of 9 takes 210."""
    clock = ModelledClock()
    time, streams = PipelineTime(deployment, clock), [stream(0, 4), stream(1, 9)]
    enter_prompts(time, *streams)
    time.step(streams)
    assert phases_ms(clock) == {"prefill": 22, "verify": 115, "link": 10 + 210, "commit": 2 + 3}
    assert 1000 * clock.now_s() == pytest.approx(115 + 5 + 220)
    assert [request_stream.session.arrival_s for request_stream in streams] == [0.0, 0.0]


def test_on_the_server_the_prompt_of_one_who_joins_delays_nobody() -> None:
    """c's 2 tokens are in the first stage, the others' in the second: its message of 140 ms came before the step."""
    clock = ModelledClock()
    time, streams = PipelineTime(SERVER, clock), [stream(0, 4), stream(1, 9)]
    enter_prompts(time, *streams)
    time.step(streams)
    began_s, _ = clock.now_s(), clock.take()
    for request_stream in streams:
        request_stream.grow([])
        request_stream.enter()
    streams.append(stream(2, 2))
    enter_prompts(time, streams[2])
    time.step(streams)
    assert phases_ms(clock) == {"prefill": 11, "verify": 115, "link": 10, "commit": 2 + 2 * 3}
    assert 1000 * (clock.now_s() - began_s) == pytest.approx(115 + 8 + 10)
    assert [1000 * request_stream.session.arrival_s for request_stream in streams] == pytest.approx(
        [0, 0, -140]
    )


def test_a_hand_over_is_as_large_as_the_fullest_stage() -> None:
    """13 tokens leave the second stage while 2 leave the first: 1000 bytes each, at 1 MB/s, take 13 ms."""
    wide = replace(
        SERVER.verifier, hand_over=replace(HAND_OVER, bytes_per_token=1000, bytes_per_s=1e6)
    )
    clock = ModelledClock()
    time = PipelineTime(replace(SERVER, verifier=wide), clock)
    streams = one_behind_another(time, 13)
    clock.take()
    time.step(streams)
    assert phases_ms(clock)["link"] == 10 + 13


def test_prompts_that_are_cached_take_no_time_of_the_stages() -> None:
    """The last token of the prompt enters alone: 110 / 2 a stage, and 10 for a draft."""
    clock, own = ModelledClock(), stream(0, 9)
    time = PipelineTime(replace(SERVER, cached_prompts=True), clock)
    enter_prompts(time, own)
    time.step([own])
    phases = phases_ms(clock)
    assert (phases["verify"], phases["prefill"]) == (55, 10)


def test_the_picture_of_a_step_shows_every_stage_the_drafter_and_the_link() -> None:
    """13 tokens are in the second stage and 2 in the first: 115 and 60 ms, drafts of 11, a hand-over of 10."""
    clock = ModelledClock()
    time = PipelineTime(SERVER, clock)
    streams = one_behind_another(time, 13)
    clock.timeline, began_ms = Timeline(), 1000 * clock.now_s()
    time.step(streams)
    names = tuple(request_stream.session.request.id for request_stream in streams)
    found = {
        (span.resource, span.label): tuple(
            round(1000 * moment - began_ms, 6) for moment in (span.start_s, span.end_s)
        )
        for span in clock.timeline.spans
    }
    assert found == {
        ("stage/1", "verify"): (0, 60),
        ("stage/1", "stall"): (60, 115),
        ("stage/1", "prune"): (115, 120),
        ("stage/2", "verify"): (0, 115),
        ("stage/2", "prune"): (115, 120),
        ("drafter", "prefill"): (0, 11),
        ("link", "transfer"): (120, 130),
    }
    assert {span.request_ids for span in clock.timeline.spans} == {names}


@pytest.mark.parametrize(("drafts", "expected"), [(True, 10 + 11 + 200), (False, 0)])
def test_a_drafter_works_off_its_forwards_one_after_the_other(
    drafts: bool, expected: float
) -> None:
    clock, own = ModelledClock(), stream(0, 4)
    time = PipelineTime(SERVER, clock, drafts=drafts)
    enter_prompts(time, own)
    time.step([own], [[(1, 0)], [(1, 0), (1, 0)], [(191, 0)]])
    assert 1000 * clock.take()["prefill"] == pytest.approx(expected)
    assert 1000 * clock.now_s() == pytest.approx(max(expected, 70) + 2 + 10 + 160)


def ends_ms(streams: Sequence[RequestStream]) -> list[float]:
    return [
        1000 * seconds
        for request_stream in streams
        for seconds in request_stream.session.record.ends_s
    ]


def test_the_ends_of_a_range_take_every_step_and_move_their_own_arrivals() -> None:
    """A stage takes twice as long at the slow end; c's message is in its own time, whose arrival moves there alone."""
    latency = SCENE.verifier.latency
    slow = replace(
        SERVER, verifier=replace(SERVER.verifier, latency=replace(latency, a_s=0.020, c_s=0.200))
    )  # type: ignore[type-var]
    ends = [PipelineTimeAtEnd(end) for end in (SERVER, slow)]
    time = PipelineTimes(PipelineTime(SERVER, ModelledClock()), ends)
    streams = one_behind_another(time, 4)
    time.step(streams)
    for request_stream in streams:
        time.release(request_stream.session)
    # a: 4 tokens in a stage take 70, 2 + 10 + 160 of messages; then 4 and 2 in two stages 70, 2 + 3 + 10.
    # b was there for the second step alone, and 140 before it.
    assert ends_ms(streams) == pytest.approx([242 + 85, 312 + 155, 85 + 140, 155 + 140])
    assert [1000 * request_stream.session.arrival_s for request_stream in streams] == pytest.approx(
        [0, -140]
    )


def test_at_an_end_a_drafter_works_off_its_forwards_too() -> None:
    clock, own = ModelledClock(), stream(0, 4)
    time = PipelineTimes(PipelineTime(SERVER, clock), [PipelineTimeAtEnd(SERVER)])
    enter_prompts(time, own)
    time.step([own], [[(1, 0)], [(1, 0), (1, 0)], [(191, 0)]])
    time.release(own.session)
    assert ends_ms([own]) == pytest.approx([10 + 11 + 200 + 2 + 10 + 160])


def test_hidden_states_of_a_prompt_come_down_with_its_answer() -> None:
    """A state is 8 bytes, two token ids' worth: those of four prompt tokens take 160 as they leave the last stage."""
    link_s: list[list[float]] = []
    for states in (None, HiddenStates((0,), 8.0)):
        clock, own = ModelledClock(), stream(0, 4)
        time = PipelineTime(EDGE, clock, states=states)
        enter_prompts(time, own)
        link_s.append([])
        for _ in range(2):
            time.step([own])
            link_s[-1].append(clock.take()["link"])
            own.grow([])
            own.enter()
    without, with_states = link_s
    assert [
        1000 * (longer - shorter) for shorter, longer in zip(without, with_states, strict=True)
    ] == pytest.approx([0, 160])


def test_a_later_request_of_the_same_name_sends_its_prompt_too() -> None:
    """The message of 4 tokens takes 90 up and 70 down, whoever had that name before."""
    clock = ModelledClock()
    time = PipelineTime(SERVER, clock)
    for _ in range(2):
        own = stream(0, 4)
        enter_prompts(time, own)
        time.step([own])
        assert phases_ms(clock)["link"] == 10 + 160
        time.release(own.session)


def test_each_stage_attends_to_what_the_stages_behind_it_hold() -> None:
    """A prompt comes in pieces of four tokens: the first stage has four tokens in KV that are in the second now."""
    latency = InteractionModel(a_s=0.010, b_compute_s=0, b_read_s=0.005, c_s=0.100)
    clock, own = ModelledClock(), stream(0, 12)
    time = PipelineTime(replace(SERVER, verifier=replace(SERVER.verifier, latency=latency)), clock)
    time.admit(own.session)
    expected_s = []
    for stages in ([(4, 0)], [(4, 4), (4, 0)], [(4, 8), (4, 4)]):
        own.take(4)
        own.enter()
        time.step([own])
        expected_s.append(max(latency.seconds([row]) for row in stages) / 2)
        assert clock.take()["verify"] == pytest.approx(expected_s[-1])
    assert expected_s == sorted(set(expected_s))


def test_requests_of_a_pipeline_draw_jitter_of_their_own() -> None:
    jittery = replace(SERVER, link=replace(SERVER.link, jitter_s=0.04))

    def link_s(slot: int) -> float:
        clock, own = ModelledClock(), stream(slot, 4)
        time = PipelineTime(jittery, clock)
        enter_prompts(time, own)
        time.step([own])
        return clock.take()["link"]

    assert link_s(0) == link_s(0) != pytest.approx(link_s(1))
