"""The device's end of a stream: which server is tried when and for how long, its hello, and what ends a stream."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.live import connection as connection_module
from specbench_kit.live.connection import (
    RECONNECT_TIMEOUT_S,
    ClientIdentity,
    Connection,
    ConnectionLostError,
    _Stream,
)
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import METHOD, Down, Up
from specbench_kit.runs.deployment import Link

NOBODY = ClientIdentity("", 0)
AWAY = "away"


class Tried(Connection):
    """A connection whose attempts succeed or fail as a test chooses, by a clock that only its waits move."""

    def __init__(
        self,
        address: str,
        script: Sequence[messages.Welcome | str],
        wait_s: float = 0.0,
        tried: list[tuple[str, float]] | None = None,
    ) -> None:
        self.script, self.tried = list(script), [] if tried is None else tried
        super().__init__(address, NOBODY, wait_s=wait_s)

    def _connect(self, timeout_s: float) -> messages.Welcome:
        self.tried.append((self.address, timeout_s))
        outcome = self.script.pop(0) if self.script else AWAY
        if isinstance(outcome, str):
            raise ConnectionLostError(outcome)
        return outcome


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between attempts, by which time passes."""
    waits: list[float] = []
    monkeypatch.setattr(connection_module, "monotonic_s", lambda: sum(waits))
    monkeypatch.setattr(connection_module, "Event", lambda: SimpleNamespace(wait=waits.append))
    return waits


def welcome(model_hash: str = "a", dtype: str = "float32") -> messages.Welcome:
    return messages.Welcome(model="tiny", model_hash=model_hash, dtype=dtype)


@pytest.mark.parametrize(("address", "timeout_s"), [("a:1", 20.0), ("a:1,b:2", 5.0)])
def test_each_server_is_tried_once_if_nobody_waits(
    address: str, timeout_s: float, waits_s: list[float]
) -> None:
    """A single server may take longer to answer than one of several."""
    addresses = address.split(",")
    script = [f"{name} is away" for name in addresses]
    tried: list[tuple[str, float]] = []
    with pytest.raises(ConnectionLostError, match=f"^{script[-1]}$"):
        Tried(address, script, tried=tried)
    assert tried == [(name, timeout_s) for name in addresses]
    assert waits_s == []


@pytest.mark.parametrize(
    ("wait_s", "waits"),
    [
        (0.1, [0.1]),
        (3.0, [0.1, 0.2, 0.4, 0.8, 1.6]),
        (15.0, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
    ],
)
def test_a_server_is_waited_for_at_growing_intervals(
    wait_s: float, waits: list[float], waits_s: list[float]
) -> None:
    with pytest.raises(ConnectionLostError):
        Tried("a:1", [], wait_s)
    assert waits_s == pytest.approx(waits)
    assert Tried("a:1", [AWAY] * len(waits) + [welcome("b")], wait_s).welcome.model_hash == "b"


def test_a_lost_connection_is_made_again_with_the_latest_server_first(waits_s: list[float]) -> None:
    connection = Tried("a:1,b:2,c:3", [AWAY, welcome(), AWAY, AWAY, welcome()])
    assert (connection.address, connection.reconnections) == ("b:2", 0)
    connection.reconnect()
    assert [name for name, _ in connection.tried] == ["a:1", "b:2", "b:2", "c:3", "a:1"]
    assert (connection.address, connection.reconnections) == ("a:1", 1)
    connection.script = [AWAY] * 3 + [welcome()]
    connection.reconnect()
    assert (connection.address, connection.reconnections, waits_s) == ("a:1", 2, [0.1])


def test_servers_that_stay_away_end_the_run_after_two_minutes(waits_s: list[float]) -> None:
    connection = Tried("a:1,b:2", [welcome()])
    with pytest.raises(
        SkitError, match=r"^the server a:1, b:2 stayed away: away; --resume goes on later$"
    ):
        connection.reconnect()
    assert 120 <= sum(waits_s) < 125
    assert connection.reconnections == 0


@pytest.mark.parametrize(
    ("other", "words"), [(("b", "float32"), "in float32"), (("a", "bfloat16"), "in bfloat16")]
)
def test_a_server_with_another_target_or_dtype_does_not_take_over(
    other: tuple[str, str], words: str, waits_s: list[float]
) -> None:
    connection = Tried("a:1,b:2", [welcome(), AWAY, welcome(*other)])
    with pytest.raises(
        SkitError, match=rf"^b:2 holds tiny {words}, and the run began with tiny in float32: "
    ):
        connection.reconnect()
    assert (connection.reconnections, waits_s) == (0, [])


class Broken(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """How gRPC says that a stream ended."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


Broken.__abstractmethods__ = frozenset()


@dataclass
class Answers:
    """A stream of frames that the test hands over, up to an error or its end."""

    sent: Iterator[Up]
    frames: SimpleQueue[Down | Exception | None] = field(default_factory=SimpleQueue)
    cancelled: int = 0

    def __iter__(self) -> Iterator[Down]:
        while (frame := self.frames.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    def cancel(self) -> None:
        self.cancelled += 1


class Channel:
    """A channel of gRPC that leads nowhere."""

    def __init__(self, *first: Down) -> None:
        self.first, self.closed = first, 0

    def stream_stream(
        self, method: str, encode: Callable[[Up], bytes], decode: Callable[[bytes], Down]
    ) -> Callable[[Iterator[Up]], Answers]:
        assert method == METHOD
        frame = Up(ping={"count": 3})
        assert Up.FromString(encode(frame)) == frame
        assert decode(Down(pong={"count": 3}).SerializeToString()) == Down(pong={"count": 3})

        def call(sent: Iterator[Up]) -> Answers:
            self.answers = Answers(sent)
            for down in self.first:
                self.answers.frames.put(down)
            return self.answers

        return call

    def close(self) -> None:
        self.closed += 1


PONG = Down(pong={"count": 7})


def stream() -> tuple[Any, Channel]:
    channel: Any = Channel()
    return _Stream(channel, None), channel


def test_frames_go_both_ways_until_the_stream_is_ended() -> None:
    ours, channel = stream()
    readers = [thread for thread in threading.enumerate() if thread.name == "answers"]
    assert readers
    assert all(thread.daemon for thread in readers), "a program ends though its server goes on"
    assert ours.poll(0) is None
    assert ours.poll(0.001) is None
    channel.answers.frames.put(PONG)
    _, frame = ours.poll(60)
    assert frame == PONG
    assert not ours.answer_arrived
    ours.send(Up(ping={"count": 1}))
    assert next(channel.answers.sent) == Up(ping={"count": 1})
    ours.end()
    assert list(channel.answers.sent) == []
    assert channel.answers.cancelled == 1


@dataclass
class NotedDirection:
    """A direction of an emulated link that delivers at once and notes what crosses it."""

    link: Link
    bytes_per_s: float
    name: str
    deliver: Callable[[Any], None]
    crossed: list[tuple[object, int]] = field(default_factory=list)

    def put(self, message: Any, size: int) -> None:
        self.crossed.append((message, size))
        self.deliver(message)


def test_each_way_of_an_emulated_link_has_its_own_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LinkDirection", NotedDirection)
    channel: Any = Channel(PONG)
    link, ping = Link(rtt_s=0.5, up_bytes_per_s=100, down_bytes_per_s=200), Up(ping={"count": 1})
    ours: Any = _Stream(channel, link)
    ours.send(ping)
    assert next(channel.answers.sent) == ping
    assert ours.poll(60)[1] == PONG
    up, down = ours._uplink, ours._downlink
    assert [(way.link, way.bytes_per_s, way.crossed) for way in (up, down)] == [
        (link, 100, [(ping, ping.ByteSize())]),
        (link, 200, [(PONG, PONG.ByteSize())]),
    ]
    assert up.name != down.name, "each draws jitter of its own"
    channel.answers.frames.put(None)


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        (None, ConnectionLostError, "^the server ended the stream$"),
        (Broken(grpc.StatusCode.UNAVAILABLE, "gone"), ConnectionLostError, "^UNAVAILABLE: gone$"),
        (
            Broken(grpc.StatusCode.UNAUTHENTICATED, "no token"),
            SkitError,
            "^the server refused: no token$",
        ),
        (
            Broken(grpc.StatusCode.FAILED_PRECONDITION, "no such"),
            SkitError,
            "^the server refused: no such$",
        ),
        (
            Broken(grpc.StatusCode.INVALID_ARGUMENT, "no frame"),
            SkitError,
            "^the server refused: no frame$",
        ),
    ],
)
def test_whoever_waits_meets_the_end_of_a_stream_every_time(
    end: Exception | None, kind: type[Exception], words: str
) -> None:
    ours, channel = stream()
    channel.answers.frames.put(PONG)
    channel.answers.frames.put(end)
    assert ours.poll(60)[1] == PONG
    for timeout_s in (60, 0, 60):
        with pytest.raises(kind, match=words):
            ours.poll(timeout_s)
    assert ours.answer_arrived


@pytest.mark.parametrize(
    ("address", "is_here"), [("127.0.0.1:1", True), ("localhost:1", True), ("there:1", False)]
)
@pytest.mark.parametrize("secure", [False, True])
def test_a_hello_says_who_calls_and_the_channel_is_as_the_identity_asks(
    address: str, is_here: bool, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC asks no proxy for this machine, and checks the server's certificate for the name that was given."""
    roots = b"roots" if secure else None
    identity = ClientIdentity(
        "t", 64, "token", "hash", "device", roots, "name", certificate=b"c", key=b"k"
    )
    channel, made = Channel(Down(welcome=welcome()), PONG), dict[str, Any]()

    def insecure(target: str, options: list[tuple[str, object]]) -> Channel:
        made.update(target=target, options=dict(options), credentials=None)
        return channel

    def secured(target: str, credentials: object, options: list[tuple[str, object]]) -> Channel:
        made.update(target=target, options=dict(options), credentials=credentials)
        return channel

    monkeypatch.setattr(grpc, "insecure_channel", insecure)
    monkeypatch.setattr(grpc, "secure_channel", secured)
    monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *files: files)
    connection = Connection(address, identity)
    assert connection.welcome == welcome()
    hello = next(channel.answers.sent).hello
    assert (hello.protocol, hello.tokenizer, hello.vocabulary) == (1, "t", 64)
    assert (hello.token, hello.model_hash, hello.device) == ("token", "hash", "device")
    assert (made["target"], made["credentials"]) == (
        address,
        (b"roots", b"k", b"c") if secure else None,
    )
    options = made["options"]
    assert ("grpc.enable_http_proxy" in options) == is_here
    assert options.get("grpc.enable_http_proxy", 0) == 0
    assert options.get("grpc.ssl_target_name_override") == ("name" if secure else None)
    # A server whose network is dead is noticed before anybody gives up on its answer.
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]
    assert (
        options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"]
        < 1000 * RECONNECT_TIMEOUT_S
    )
    assert options["grpc.http2.max_pings_without_data"] == 0  # any number
    assert options["grpc.use_local_subchannel_pool"] == 1
    assert options["grpc.max_receive_message_length"] == -1
    assert connection.receive(60)[1] == PONG
    with pytest.raises(ConnectionLostError, match="no answer"):
        connection.receive(0)
    connection.close()
    connection.close()
    assert (channel.closed, channel.answers.cancelled) == (1, 1)
