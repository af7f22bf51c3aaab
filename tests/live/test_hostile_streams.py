"""Devices that vanish, do not read, or speak another protocol: each ends alone, and others get what they would get."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import grpc
import pytest
from hostile_devices import SMALL_WINDOW
from live_server import CALLER, CAPACITY, VOCABULARY, decode_here, decode_remotely, serving
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.live.connection import Connection
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.wire import METHOD, PROTOCOL, Down, Up
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 8)
CHAIN = parse_method("fixed-k:k=3")
HELLO = {"protocol": PROTOCOL, "tokenizer": "same", "vocabulary": VOCABULARY}
PATIENCE_S = 60
HEARTBEAT_S = 3.0  # so that a busy machine answers within half of it


def assert_others_go_on(address: str) -> None:
    records = decode_remotely(CHAIN, Connection(address, CALLER), REQUESTS)
    assert outputs(records) == outputs(decode_here(CHAIN, REQUESTS))


def until(condition: Callable[[], bool]) -> None:
    for _ in range(100 * PATIENCE_S):
        if condition():
            return
        Event().wait(0.01)
    raise AssertionError("it did not come to that")


@contextmanager
def breakable_route(address: str) -> Iterator[tuple[str, Event]]:
    """Yield an address that leads to `address`, and an event that cuts the route without a word to either end."""
    cut, (host, port) = Event(), address.split(":")

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        while (content := source.recv(1 << 16)) and not cut.is_set():
            sink.sendall(content)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection((host, int(port))) as server,
    ):

        def lead() -> None:
            device, _ = listener.accept()
            Thread(target=pass_on, args=(device, server), daemon=True).start()
            pass_on(server, device)

        Thread(target=lead, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", cut


def test_a_device_that_vanishes_is_let_go_and_one_that_is_silent_is_not() -> None:
    with (
        serving(limits=ServerLimits(context=CAPACITY, heartbeat_s=HEARTBEAT_S)) as (
            service,
            address,
        ),
        breakable_route(address) as (route, cut),
    ):
        vanishing, silent = Connection(route, CALLER), Connection(address, CALLER)
        Event().wait(2.5 * HEARTBEAT_S)
        assert streams(service) == 2
        cut.set()
        until(lambda: streams(service) == 1)
        assert_others_go_on(address)
        silent.send(Up(ping={"count": 7}))
        assert silent.receive(PATIENCE_S)[1].pong.count == 7
        assert vanishing.welcome.model == "tiny"


def streams(service: VerificationService) -> float:
    return service.handler.metrics.registry.get_sample_value("skit_streams") or 0.0


def test_a_device_that_does_not_read_is_sent_away_though_it_does_not_hear_of_it() -> None:
    with serving() as (service, address), grpc.insecure_channel(address, SMALL_WINDOW) as channel:
        heard = Event()

        def frames() -> Iterator[object]:
            yield Up(hello=HELLO)
            for number in range(600):
                yield Up(draft={"session": "x" * 1000, "round": number})
            heard.wait(PATIENCE_S)

        answers = channel.stream_stream(METHOD, Up.SerializeToString, Down.FromString)(frames())
        flood = {"status": "FLOOD"}
        until(
            lambda: (
                service.handler.metrics.registry.get_sample_value(
                    "skit_refused_frames_total", flood
                )
                == 1
            )
        )
        until(lambda: streams(service) == 0)
        assert_others_go_on(address)
        with pytest.raises(grpc.RpcError, match="FLOOD: more than 256 answers were not read"):
            list(answers)
        heard.set()


def test_another_protocol_is_refused_with_both_versions() -> None:
    with serving() as (_, address), grpc.insecure_channel(address) as channel:
        hello = Up(hello={**HELLO, "protocol": PROTOCOL + 1})
        call = channel.stream_stream(METHOD, Up.SerializeToString, Down.FromString)(iter([hello]))
        with pytest.raises(
            grpc.RpcError, match=f"WRONG_PROTOCOL: protocol {PROTOCOL + 1}; .* speaks {PROTOCOL}"
        ):
            next(call)
        assert_others_go_on(address)
