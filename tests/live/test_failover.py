"""Several servers, servers that come late, and devices that fall silent."""

import json
from pathlib import Path
from threading import Event, Thread

import pytest
from hostile_devices import until
from live_server import (
    CALLER,
    CAPACITY,
    VOCABULARY,
    decode_here,
    decode_remotely,
    draft_runner,
    make_server,
    run,
    serving,
)
from tiny_models import GREEDY, make_requests, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.assembly import remote_loop
from specbench_kit.live.connection import Connection
from specbench_kit.live.connection_options import ConnectionOptions
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.wire import Status, Up
from specbench_kit.live.wire_verifier import WireVerifier
from specbench_kit.methods.spec import parse_method

CHAIN = parse_method("fixed-k:k=3")
REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 30)
PATIENCE_S = 60.0


def test_another_server_takes_over_when_one_is_lost() -> None:
    first, second = make_server(), make_server()
    with serving(second) as (_, second_address):
        with serving(first) as (_, address):
            connection = Connection(f"{address},{second_address}", CALLER)
            assert connection.address == address
            decoded = outputs(decode_remotely(CHAIN, connection, REQUESTS[:1]))
        decoded |= outputs(decode_remotely(CHAIN, connection, REQUESTS[1:]))
        assert (connection.address, connection.reconnections) == (second_address, 1)
    assert decoded == outputs(decode_here(CHAIN, REQUESTS))


def test_a_server_with_another_target_does_not_take_over() -> None:
    first, second = make_server(), make_server()
    second.handler.welcome.model_hash = "1"
    with serving(second) as (_, second_address):
        with serving(first) as (_, address):
            connection = Connection(f"{address},{second_address}", CALLER)
        with pytest.raises(
            SkitError, match=f"{second_address} holds tiny in float32, and the run began with tiny"
        ):
            decode_remotely(CHAIN, connection, REQUESTS)


def test_a_server_that_is_away_at_the_start_is_waited_for() -> None:
    with serving() as (_, address):
        pass
    connected: list[Connection] = []
    options = ConnectionOptions(server_wait=PATIENCE_S)

    def connect() -> None:
        connected.append(
            ServerAddress(address, options).connect(tokenizer="same", vocabulary=VOCABULARY)
        )

    device = Thread(target=connect)
    device.start()
    with serving(make_server(listen=ListenAddress(address))):
        device.join(PATIENCE_S)
    assert connected[0].welcome.model == "tiny"


def test_nobody_who_waits_is_one_line() -> None:
    with pytest.raises(
        SkitError, match=r"0.0.1:1,127.0.0.1:2: 127.0.0.1:1: nothing listens there; 127.0.0.1:2"
    ):
        ServerAddress("127.0.0.1:1,127.0.0.1:2").connect()
    with pytest.raises(SkitError, match="'there' is no HOST:PORT"):
        ServerAddress("127.0.0.1:1,there").connect()


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(0.8, top_k=20)])
def test_a_server_goes_on_while_a_device_is_silent(sampler: Sampler, tmp_path: Path) -> None:
    """The device's process stands still after its second round; when it is back, it has its whole response at once."""
    service, log = make_server(), tmp_path / "events.jsonl"
    service.log = service.handler.log = EventLog(log)
    metrics = service.handler.metrics.registry
    with serving(service) as (_, address):
        connection = Connection(address, CALLER)
        loop = remote_loop(
            CHAIN,
            {"draft": draft_runner(1)},
            lambda clock: WireVerifier(connection, sampler, 0, clock, silence_s=0.2),
            DecodingSetup(sampler=sampler, capacity=CAPACITY),
        )
        loop.submit(REQUESTS[0])
        loop.step()
        loop.step()
        (session,) = service.handler.sessions
        full_length = len(REQUESTS[0].prompt_ids) + REQUESTS[0].max_new_tokens
        until(lambda: len(session.text.tokens) == full_length and not session.in_flight)
        # The server counts a round a moment after it has answered it.
        until(
            lambda: (
                (metrics.get_sample_value("skit_committed_tokens_total") or 0)
                >= REQUESTS[0].max_new_tokens
            )
        )
        rounds = metrics.get_sample_value("skit_rounds_total")
        records = run(loop, [])
        assert metrics.get_sample_value("skit_rounds_total") == rounds
    (output,) = outputs(records).values()
    assert session.text.tokens == [*REQUESTS[0].prompt_ids, *output]
    if sampler.greedy:  # sampled drafts are accepted by another rule than plain decoding's
        assert outputs(records) == outputs(decode_here(CHAIN, REQUESTS[:1]))
    events = [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()]
    assert events.count("goes on alone") == 1


def test_a_device_that_comes_back_early_stops_the_server_and_drafts_again() -> None:
    prompt = list(REQUESTS[0].prompt_ids)
    (plain,) = decode_here(CHAIN, make_requests([prompt], 120)).values()
    with serving() as (service, address):
        connection = Connection(address, CALLER)
        opening = {"session": "s", "prompt": prompt, "silence_ms": 50, "max_tokens": 120}
        connection.send(Up(open=opening))
        connection.send(Up(draft={"session": "s", "round": 1, "base": len(prompt)}))
        while connection.receive(PATIENCE_S)[1].WhichOneof("kind") != "verdict":
            pass
        (session,) = service.handler.sessions
        until(lambda: len(session.text.tokens) > len(prompt) + 5)
        answer = ask_until_answered(
            connection, {"session": "s", "round": 2, "base": len(prompt) + 1}
        )
        assert answer.status == Status.REBASE
        answered = [plain.output_ids[0], *answer.suffix]
        assert 5 < len(answered) < 120
        assert answered == plain.output_ids[: len(answered)]


def ask_until_answered(connection: Connection, draft: dict[str, object]) -> messages.Verdict:
    """Send a draft again as long as the server is busy with the session."""
    while True:
        connection.send(Up(draft=draft))
        frame = connection.receive(PATIENCE_S)[1]
        if frame.WhichOneof("kind") == "verdict":
            return frame.verdict
        assert frame.refused.status == Status.IN_FLIGHT
        Event().wait(frame.refused.retry_ms / 1e3)


def test_a_bound_that_no_server_can_keep_is_refused() -> None:
    with serving() as (_, address):
        connection = Connection(address, CALLER)
        for bound in ({"silence_ms": 1, "max_tokens": 5}, {"silence_ms": 100}):
            connection.send(Up(open={"session": "s", "prompt": [1, 2], **bound}))
            refused = connection.receive(PATIENCE_S)[1].refused
            assert Status(refused.status) is Status.BROKEN_DEADLINE
