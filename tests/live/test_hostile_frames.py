"""One device attacks by bytes, frames and streams: its neighbour gets the tokens and the rounds that it gets alone."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from hostile_devices import (
    PROMPT,
    SMALL_WINDOW,
    Attacker,
    Neighbour,
    ask,
    attack_list,
    attacked_server,
    opening,
    until,
)
from live_server import VOCABULARY
from nightly import nightly_except

from specbench_kit.core.errors import SkitError
from specbench_kit.live.connection import ConnectionLostError
from specbench_kit.live.wire import Status, Up

ATTACKS, attack = attack_list()


@attack(streams=6)
def more_streams_than_a_token_has(attacker: Attacker, _: Neighbour) -> None:
    for _ in range(3):
        attacker.connect()
    with pytest.raises(
        ConnectionLostError, match="TOO_MANY_STREAMS: 3 streams are open for token 2"
    ):
        attacker.connect()


@attack(hello_s=1.0)
def silent_sockets_and_streams(attacker: Attacker, _: Neighbour) -> None:
    sockets = [attacker.open_socket() for _ in range(20)]
    for silent in sockets:
        while silent.recv(1 << 12):
            pass
        silent.close()
    until(lambda: attacker.sample("skit_streams") == 1)


@attack(stream_bytes_per_s=1e5)
def a_flood_of_small_frames(attacker: Attacker, _: Neighbour) -> None:
    def frames() -> Iterator[object]:
        for number in range(250):
            yield Up(ping={"count": number})
        until(lambda: attacker.sample("skit_paused_reads_total") > 0)

    answers = [answer.WhichOneof("kind") for answer in attacker.call(frames())]
    assert answers == ["welcome"] + ["pong"] * 250


@attack(token_bytes_per_s=1e5)
def a_flood_over_several_streams(attacker: Attacker, _: Neighbour) -> None:
    connections = [attacker.connect() for _ in range(3)]
    for number in range(300):
        connections[number % 3].send(Up(ping={"count": number}))
    answers = [connections[number % 3].receive(60)[1].pong.count for number in range(300)]
    assert answers == list(range(300))
    assert attacker.sample("skit_paused_reads_total") > 0


@attack()
def frames_full_of_numbers(attacker: Attacker, _: Neighbour) -> None:
    connection, many = attacker.connect(), [1] * 400_000
    ask(connection, open=opening("s"))
    score = {"session": "s", "prompt": PROMPT, "output": [1, 2], "sampling": {"request": "s"}}
    draft = {"session": "s", "round": 1, "base": len(PROMPT)}
    generate = {"session": "s", "round": 1, "base": len(PROMPT), "max_tokens": 5}
    for frame, status in (
        ({"open": opening("t", many)}, Status.CONTEXT_FULL),
        ({"open": {**opening("t"), "layers": many}}, Status.BROKEN_STATES),
        (
            {"open": {**opening("t"), "silence_ms": 1000, "max_tokens": 5, "ends": many}},
            Status.MALFORMED_FRAME,
        ),
        ({"generate": {**generate, "ends": many}}, Status.MALFORMED_FRAME),
        ({"draft": {**draft, "tokens": [1], "parents": many}}, Status.BROKEN_TREE),
        ({"draft": {**draft, "tokens": [1], "counts": many}}, Status.BROKEN_DISTRIBUTION),
        ({"score": {**score, "prompt": many}}, Status.CONTEXT_FULL),
        ({"score": {**score, "rounds": [{}] * 200_000}}, Status.BROKEN_TREE),
        ({"score": {**score, "plain": [{"padded": many}]}}, Status.TOO_MANY_NODES),
    ):
        assert Status(ask(connection, **frame).status) is status


@attack(idle_s=2.0, token_unread_bytes=100_000)
def a_device_that_asks_and_never_reads(attacker: Attacker, _: Neighbour) -> None:
    def frames() -> Iterator[object]:
        for number in range(40):
            yield Up(open={**opening(f"{number}", [1] * 90), "layers": [0] * 8})
            yield Up(
                draft={"session": f"{number}", "round": 1, "base": 90}
            )  # answered by its prompt's hidden states
        attacker_left.wait(60)

    attacker_left = Event()
    call = attacker.call(frames(), SMALL_WINDOW)
    until(lambda: attacker.refusals(Status.IDLE) == 1)
    until(lambda: attacker.sample("skit_streams") == 1)
    assert attacker.account("bad").unread_bytes == 0
    attacker_left.set()
    call.cancel()


@attack(hello_s=1.0)
def streams_that_need_no_token(attacker: Attacker, _: Neighbour) -> None:
    with grpc.insecure_channel(attacker.address) as channel:
        with pytest.raises(grpc.RpcError, match="answers single checks"):
            list(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        requests = SimpleQueue[Any]()
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter(requests.get, None)
        )
        assert list(reflected) == []  # it ends, though nothing was asked
        requests.put(None)


@attack()
def bytes_that_are_no_frames(attacker: Attacker, _: Neighbour) -> None:
    for content in (b"\xff\xff\xff", b"", b"\x08\x96\x01"):
        with pytest.raises(grpc.RpcError, match="MALFORMED_FRAME"):
            list(attacker.call(iter([content])))


@attack()
def hellos_that_lie(attacker: Attacker, _: Neighbour) -> None:
    for vocabulary in (0, VOCABULARY + 1, (1 << 32) - 1):
        with pytest.raises(SkitError, match=f"WRONG_VOCABULARY: .* have {vocabulary} tokens"):
            attacker.connect(vocabulary=vocabulary)
    with pytest.raises(
        SkitError, match="MALFORMED_FRAME: a device's name has up to 256 characters"
    ):
        attacker.connect(device="x" * 100_000)
    for token in ("", "good ", "x" * 100_000):
        with pytest.raises(SkitError, match="WRONG_TOKEN"):
            attacker.connect(token=token)


@attack()
def names_and_numbers_without_measure(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    for frame in (
        {"open": opening("x" * 1000)},
        {"draft": {"session": "x" * 100_000}},
        {"close": {"session": "x" * 300}},
    ):
        assert Status(ask(connection, **frame).status) is Status.MALFORMED_FRAME
    ask(connection, open=opening("s", seed=-(1 << 63)))
    for frame, status in (
        ({"base": (1 << 32) - 1}, Status.WRONG_BASE),
        ({"tokens": [(1 << 32) - 1]}, Status.TOKEN_OUTSIDE_VOCABULARY),
        ({"tokens": [1] * 100_000}, Status.TOO_MANY_NODES),
        ({"tokens": [1], "parents": [(1 << 32) - 1]}, Status.BROKEN_TREE),
        ({"round_ms": -1e308}, Status.BROKEN_DEADLINE),
    ):
        draft = {"session": "s", "round": 1, "base": len(PROMPT), **frame}
        assert Status(ask(connection, draft=draft).status) is status
    generate = {"session": "s", "round": 1, "base": len(PROMPT), "max_tokens": (1 << 32) - 1}
    assert Status(ask(connection, generate=generate).status) is Status.CONTEXT_FULL


@pytest.mark.parametrize("name", nightly_except([*ATTACKS][::2], ATTACKS))
def test_a_neighbour_gets_what_it_gets_alone(name: str, tmp_path: Path) -> None:
    limits, function = ATTACKS[name]
    with attacked_server(tmp_path, **limits) as (attacker, neighbour):
        function(attacker, neighbour)
