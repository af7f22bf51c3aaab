"""Attacks of one device on a server, and a neighbour that decodes meanwhile."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
from live_server import CAPACITY, VOCABULARY, decode_here, decode_remotely, make_server, serving
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.server.admission import Account, ServerLimits
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.wire import METHOD, PROTOCOL, Down, Status, Up
from specbench_kit.methods.spec import parse_method

CHAIN = parse_method("fixed-k:k=3")
REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 24)
GOOD, BAD = ClientIdentity("same", VOCABULARY, "good"), ClientIdentity("same", VOCABULARY, "bad")
PROMPT = [3, 14, 15, 9, 2, 6]
POISON = [63, 62, 63, 62, 63]
SLOTS = 4
PATIENCE_S = 60.0
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
"""Options of a channel that takes little more than is read."""


@dataclass
class Attacker:
    """A device with a valid token, which sends what it likes."""

    service: VerificationService
    address: str
    _connections: list[Connection] = field(default_factory=list)

    def connect(self, **identity: Any) -> Connection:
        """Open a stream, with the attacker's token unless another one is named."""
        connection = Connection(self.address, replace(BAD, **identity))
        self._connections.append(connection)
        return connection

    def call(
        self, frames: Iterator[object], options: Sequence[tuple[str, int]] = ()
    ) -> grpc.Future:
        """Send frames, or bytes, without the kit's client."""
        channel = grpc.insecure_channel(
            self.address, [("grpc.use_local_subchannel_pool", 1), *options]
        )
        hello = Up(
            hello={
                "protocol": PROTOCOL,
                "tokenizer": "same",
                "vocabulary": VOCABULARY,
                "token": "bad",
            }
        )

        def sent() -> Iterator[bytes]:
            yield hello.SerializeToString()
            yield from (
                frame if isinstance(frame, bytes) else frame.SerializeToString() for frame in frames
            )

        return channel.stream_stream(METHOD, None, Down.FromString)(sent())

    def refusals(self, status: Status) -> float:
        """Return how many frames and streams the server refused with a status."""
        registry = self.service.handler.metrics.registry
        return (
            registry.get_sample_value("skit_refused_frames_total", {"status": status.name}) or 0.0
        )

    def sample(self, name: str) -> float:
        """Return a metric of the server."""
        return self.service.handler.metrics.registry.get_sample_value(name) or 0.0

    def account(self, token: str) -> Account:
        """Return what the devices with a token use of the server."""
        number = self.service.handler.admission.tokens.index(token) + 1
        return self.service.handler.admission._accounts[f"token {number}"]

    def open_socket(self) -> socket.socket:
        """Return a socket on which nothing is sent."""
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@dataclass
class Neighbour:
    """A device that decodes the same requests again and again until it is stopped."""

    address: str
    stopping: Event = field(default_factory=Event)
    runs: list[dict[str, RequestRecord]] = field(default_factory=list)
    started: Event = field(default_factory=Event)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._decode, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it finish the requests that it is at, and wait for it."""
        self.stopping.set()
        self._thread.join(PATIENCE_S)

    def _decode(self) -> None:
        connection = Connection(self.address, GOOD)
        self.started.set()
        while not (self.stopping.is_set() and self.runs):
            self.runs.append(decode_remotely(CHAIN, connection, REQUESTS, batch_size=2))
        connection.close()


@contextmanager
def attacked_server(folder: Path, **limits: Any) -> Iterator[tuple[Attacker, Neighbour]]:
    """Yield an attacker and a neighbour of one server, and check afterwards that the neighbour was not harmed."""
    log = folder / "events.jsonl"
    service = make_server(SLOTS, ServerLimits(context=CAPACITY, **limits), tokens=("good", "bad"))
    service.log = service.handler.log = EventLog(log)
    with serving(service) as (_, address):
        neighbour = Neighbour(address)
        assert neighbour.started.wait(PATIENCE_S)
        attacker = Attacker(service, address)
        yield attacker, neighbour
        neighbour.end()
        attacker.close()
        good = attacker.account("good")
    assert_unharmed(
        neighbour, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    )
    assert good.evictions == 0


Attack = Callable[[Attacker, Neighbour], None]


def attack_list() -> tuple[
    dict[str, tuple[dict[str, float], Attack]], Callable[..., Callable[[Attack], Attack]]
]:
    """Return an empty list of attacks, and a decorator that adds one on a server with certain limits."""
    attacks: dict[str, tuple[dict[str, float], Attack]] = {}

    def attack(**limits: Any) -> Callable[[Attack], Attack]:
        def add(function: Attack) -> Attack:
            attacks[function.__name__] = limits, function
            return function

        return add

    return attacks, attack


def assert_unharmed(neighbour: Neighbour, events: list[JsonObject]) -> None:
    """Check that the neighbour got the tokens and the rounds that it gets alone, and that it met no refusal."""
    alone = decode_here(CHAIN, REQUESTS, batch_size=2)
    assert neighbour.runs
    for records in neighbour.runs:
        assert outputs(records) == outputs(alone)
        for name, record in records.items():
            assert steps(record) == steps(alone[name])
    harmed = [
        event
        for event in events
        if event.get("account") == "token 1" and event["event"] in ("refused", "failed")
    ]
    assert harmed == []


def steps(record: RequestRecord) -> list[tuple[int, int, int]]:
    return [(step.submitted, step.accepted, step.committed) for step in record.rounds]


def break_runner(attacker: Attacker) -> None:
    """Let the server's model fail whenever a row begins with the poison, whatever else is in the batch."""
    runner = attacker.service.handler.batch_runner._verifier._runner
    forward = runner.executor.forward

    def failing(rows: Any, layers: Any = ()) -> Any:
        if any(list(row.tokens[: len(POISON)]) == POISON for row in rows):
            raise RuntimeError("illegal memory access\nand what a driver adds")
        return forward(rows, layers)

    runner.executor.forward = failing


def ask(connection: Connection, **frame: Any) -> Any:
    """Send a frame and wait for its answer."""
    connection.send(Up(**frame))
    _, down = connection.receive(PATIENCE_S)
    return getattr(down, down.WhichOneof("kind"))


def opening(name: str, prompt: list[int] | None = None, **sampling: object) -> JsonObject:
    return {"session": name, "prompt": prompt or PROMPT, "sampling": {"request": name, **sampling}}


def until(condition: Callable[[], bool]) -> None:
    for _ in range(round(100 * PATIENCE_S)):
        if condition():
            return
        Event().wait(0.01)
    raise AssertionError("it did not come to that")
