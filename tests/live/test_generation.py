"""A server that decodes by itself: what it streams, beside other sessions, and how it is stopped."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

import pytest
from live_server import (
    CALLER,
    CAPACITY,
    VOCABULARY,
    decode_here,
    decode_remotely,
    generate_remotely,
    generating_loop,
    make_server,
    serving,
)
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.connection import Connection
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.generation import Generation, GenerationEvent, GenerationState
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Status, Up
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link

PLAIN, CHAIN = parse_method("autoregressive"), parse_method("fixed-k:k=3")
PROMPTS = random_prompts([5, 9, 17], VOCABULARY)
REQUESTS = make_requests(PROMPTS, 10)
RTT_S = 0.1
PATIENCE_S = 60.0


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.8, top_k=20)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_response_is_that_of_plain_decoding_here(sampler: Sampler, batch_size: int) -> None:
    with serving() as (_, address):
        streamed = generate_remotely(
            Connection(address, CALLER), REQUESTS, sampler=sampler, batch_size=batch_size
        )
    assert outputs(streamed) == outputs(decode_here(PLAIN, REQUESTS, sampler=sampler))
    for record in streamed.values():
        assert [round_.committed for round_ in record.rounds] == [1] * 10
        assert all(round_.verify_s > 0 for round_ in record.rounds)


def test_the_link_is_paid_once_and_not_for_every_token() -> None:
    with serving() as (_, address):
        connection = Connection(address, CALLER, Link(rtt_s=RTT_S))
        streamed = generate_remotely(connection, REQUESTS[:1])
        by_rounds = decode_remotely(PLAIN, connection, REQUESTS[:1])
    streamed_s, by_rounds_s = (
        sum(r.link_s for r in next(iter(of.values())).rounds) for of in (streamed, by_rounds)
    )
    first_s = next(iter(streamed.values())).rounds[0].link_s
    # On a slow machine all tokens may be there before the first of them is read: then they cost no link time at all.
    assert RTT_S <= first_s <= streamed_s < by_rounds_s / 2
    assert by_rounds_s >= 10 * RTT_S


def test_a_response_ends_at_the_first_end_token() -> None:
    plain = next(iter(decode_here(PLAIN, REQUESTS[:1]).values())).output_ids
    end = plain[4]
    with serving() as (_, address):
        (record,) = generate_remotely(
            Connection(address, CALLER), REQUESTS[:1], eos_ids=frozenset({end, VOCABULARY - 1})
        ).values()
    assert record.output_ids == plain[: plain.index(end) + 1]
    assert record.finish_reason == "eos"


def test_generations_share_batches_with_the_drafts_of_other_devices() -> None:
    """A device verifies drafts while another one's response is decoded: both get what they would get alone."""
    with serving() as (service, address):
        device, reader = Connection(address, CALLER), Connection(address, CALLER)
        long = make_requests(PROMPTS[:1], 100)[0]
        begin(reader, "long", long.prompt_ids, 100)
        verified = decode_remotely(CHAIN, device, REQUESTS, batch_size=3)
        streamed = [token for frame in until_last(reader) for token in frame.tokens]
        assert service.handler.batch_runner.waiting == 0
    assert outputs(verified) == outputs(decode_here(CHAIN, REQUESTS))
    assert streamed == next(iter(decode_here(PLAIN, [long]).values())).output_ids


def test_a_cancelled_generation_ends_and_its_session_takes_drafts() -> None:
    prompt = PROMPTS[0]
    with serving() as (service, address):
        connection = Connection(address, CALLER)
        begin(connection, "s", prompt, 100)
        connection.receive(PATIENCE_S)
        connection.send(Up(draft=messages.Draft(session="s", round=2, base=len(prompt))))
        connection.send(Up(cancel=messages.Cancel(session="s")))
        frames = until_last(connection)
        in_flight = own_session(service.handler).in_flight
        committed = frames[-1].base + len(frames[-1].tokens)
        connection.send(Up(draft=messages.Draft(session="s", round=2, base=committed)))
        while (answer := connection.receive(PATIENCE_S)[1]).WhichOneof("kind") != "verdict":
            pass
    assert not in_flight
    assert committed < len(prompt) + 100
    assert answer.verdict.status == Status.OK


def generation_without_network(
    max_tokens: int,
) -> tuple[FrameHandler, DeviceStream, SimpleQueue[list[VerifiedRound]]]:
    """Begin a generation with a credit of eight; its verified batches wait in the queue until the test answers them."""
    handler = make_server(limits=ServerLimits(context=CAPACITY, credit=8)).handler
    stream, batches = DeviceStream(handler), SimpleQueue[list[VerifiedRound]]()
    handler.batch_runner.deliver = batches.put
    handler.batch_runner.start()
    stream.receive(Up(open=messages.Open(session="s", prompt=PROMPTS[0])))
    stream.answers.get_nowait()
    stream.receive(
        Up(
            generate=messages.Generate(
                session="s", round=1, base=len(PROMPTS[0]), max_tokens=max_tokens
            )
        )
    )
    return handler, stream, batches


@pytest.mark.parametrize(
    "state", [GenerationState.RUNS, GenerationState.PAUSES, GenerationState.PARKED]
)
@pytest.mark.parametrize("later", list(GenerationEvent))
def test_a_cancelled_generation_never_goes_on(
    state: GenerationState, later: GenerationEvent
) -> None:
    generation = Generation(1, 10, frozenset(), 1.0, state=state)
    generation.move(GenerationEvent.CANCELLED)
    # Of a parked one nothing is under way that could come back.
    assert generation.state is (
        GenerationState.OVER if state is GenerationState.PARKED else GenerationState.ENDS
    )
    for event in (later, GenerationEvent.READ):
        generation.move(event)
        assert not generation.goes_on
    generation.move(GenerationEvent.STOPPED)
    assert generation.state is GenerationState.OVER


def test_a_paused_generation_goes_on_when_its_tokens_are_read() -> None:
    generation = Generation(1, 10, frozenset(), 1.0)
    assert generation.goes_on
    for events in (
        [GenerationEvent.FULL],
        [GenerationEvent.FULL, GenerationEvent.STOPPED],
        [GenerationEvent.STOPPED],
    ):
        for event in events:
            generation.move(event)
        assert not generation.goes_on
        generation.move(GenerationEvent.READ)
        assert generation.goes_on


def test_a_device_that_does_not_read_holds_its_generation_back() -> None:
    handler, stream, batches = generation_without_network(max_tokens=100)
    runner, session = handler.batch_runner, own_session(handler)
    generation = session.generation
    assert generation is not None
    while generation.state is not GenerationState.PARKED:
        handler.answer(batches.get(timeout=PATIENCE_S))
    assert 4 <= stream.unread <= 8
    assert (runner.waiting, batches.empty()) == (0, True)
    tokens: list[int] = []
    while session.in_flight or stream.unread:
        while stream.unread:
            answer = stream.answers.get_nowait()
            assert isinstance(answer, Down)
            tokens += answer.generated.tokens
            stream.written(answer)
        if session.in_flight:
            handler.answer(batches.get(timeout=PATIENCE_S))
    runner.stop()
    (plain,) = decode_here(PLAIN, make_requests(PROMPTS[:1], 100)).values()
    assert tokens == plain.output_ids


def test_a_busy_event_loop_holds_generations_back() -> None:
    """Else tokens would come for as long as it is busy, until there are too many for a stream."""
    handler, stream, batches = generation_without_network(max_tokens=40)
    session = own_session(handler)
    tokens: list[int] = []
    while session.in_flight:
        verified = [batches.get(timeout=PATIENCE_S)]
        while verified[-1][0].goes_on:
            verified.append(batches.get(timeout=PATIENCE_S))
        assert len(verified) <= 4, "half of the credit"
        for batch in verified:
            handler.answer(batch)
        while stream.unread:
            answer = stream.answers.get_nowait()
            assert isinstance(answer, Down)
            tokens += answer.generated.tokens
            stream.written(answer)
    handler.batch_runner.stop()
    (plain,) = decode_here(PLAIN, make_requests(PROMPTS[:1], 40)).values()
    assert tokens == plain.output_ids


def test_a_device_that_is_gone_ends_its_generation_and_takes_it_up_where_it_was() -> None:
    prompt = PROMPTS[0]
    plain = next(iter(decode_here(PLAIN, make_requests([prompt], 100)).values())).output_ids
    with serving() as (service, address):
        connection = Connection(address, CALLER)
        begin(connection, "s", prompt, 100)
        while connection.receive(PATIENCE_S)[1].WhichOneof("kind") != "generated":
            pass
        connection.close()
        until(lambda: not own_session(service.handler).in_flight)
        back = Connection(address, CALLER)
        begin(back, "s", prompt, 100)
        tokens = [token for frame in until_last(back) for token in frame.tokens]
    assert tokens == plain


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"session": "x"}, Status.UNKNOWN_SESSION),
        ({"base": 1}, Status.WRONG_BASE),
        ({"base": 99}, Status.WRONG_BASE),
        ({"max_tokens": CAPACITY}, Status.CONTEXT_FULL),
        ({"max_tokens": 0}, Status.CONTEXT_FULL),
        ({"ends": [VOCABULARY]}, Status.TOKEN_OUTSIDE_VOCABULARY),
        ({"round_ms": -1.0}, Status.BROKEN_DEADLINE),
    ],
)
def test_a_faulty_request_is_refused_by_name_and_the_session_goes_on(
    change: dict[str, object], status: Status
) -> None:
    prompt = PROMPTS[0]
    frame = {"session": "s", "round": 1, "base": len(prompt), "max_tokens": 3, **change}
    with serving() as (_, address):
        connection = Connection(address, CALLER)
        connection.send(Up(open=messages.Open(session="s", prompt=prompt)))
        connection.receive(PATIENCE_S)
        connection.send(Up(generate=frame))
        refused = connection.receive(PATIENCE_S)[1].refused
        begin(connection, "s", prompt, 3)
        frames = until_last(connection)
    assert (refused.status, refused.round) == (status, 1)
    assert [len(frame.tokens) for frame in frames] == [1, 1, 1]


def test_a_server_that_cannot_decode_by_itself_is_one_line() -> None:
    with serving() as (service, address):
        service.handler.welcome.generates = False
        with pytest.raises(SkitError, match="cannot decode by itself, which the baseline needs"):
            generate_remotely(Connection(address, CALLER), REQUESTS)


def own_session(handler: FrameHandler) -> ServerSession:
    (session,) = handler.sessions
    return session


def begin(connection: Connection, session: str, prompt: tuple[int, ...], tokens: int) -> None:
    connection.send(Up(open=messages.Open(session=session, prompt=prompt)))
    frame = messages.Generate(session=session, round=1, base=len(prompt), max_tokens=tokens)
    connection.send(Up(generate=frame))


def until_last(connection: Connection) -> list[messages.Generated]:
    frames: list[messages.Generated] = []
    while not (frames and frames[-1].last):
        frame: Down = connection.receive(PATIENCE_S)[1]
        if frame.WhichOneof("kind") == "generated":
            frames.append(frame.generated)
    return frames


def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        Event().wait(0.01)
    raise AssertionError("it did not come to that")


def test_a_turn_leaves_nothing_in_flight() -> None:
    with serving() as (service, address):
        loop = generating_loop(Connection(address, CALLER), batch_size=2)
        for request in REQUESTS:
            loop.submit(request)
        loop.admissions, records = 2, list[RequestRecord]()
        while len(records) < 2:
            records += loop.step()
        assert (loop.idle, loop.sessions) == (False, [])
        assert all(not session.in_flight for session in service.handler.sessions)
