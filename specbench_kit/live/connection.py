"""The edge's end of a stream: frames go out, and what arrives waits with the moment of its arrival."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import grpc

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.base import Link
from specbench_kit.live.link import LinkDirection
from specbench_kit.live.wire import METHOD, PROTOCOL, Down, Up

WELCOME_S = 20.0
PATIENCE_S = 120.0
"""How long a server may be away before a run ends."""
FIRST_WAIT_S, MOST_WAIT_S = 0.1, 5.0
FATAL = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Who calls: what the hello says, and how the way to the server is protected."""

    tokenizer: str
    vocabulary: int
    token: str = ""
    model_hash: str = ""
    """Of the target that its drafts were recorded with, where there is no tokenizer."""
    roots: bytes | None = None
    """Certificates that the server's has to be signed by; without them nothing is encrypted."""


class ConnectionLostError(Exception):
    """The stream has ended, as something is wrong on the way or with the server."""


class Connection:
    """One stream to one server, made again where it was lost; `welcome` is what the server said of itself."""

    def __init__(self, address: str, caller: ClientIdentity, link: Link | None = None) -> None:
        self.address, self._caller, self._link = address, caller, link
        self._channel: Any = None
        self._stream = _Nothing()
        self.welcome = self._connect()
        self.reconnections = 0

    def send(self, up: Any) -> None:
        """Send a frame; of a stream that is lost, `receive` tells."""
        self._stream.send(up)

    def receive(self, wait_s: float = PATIENCE_S) -> tuple[float, Any]:
        """The next frame and when it arrived; a `ConnectionLostError` where the stream ended before."""
        found = self._stream.poll(wait_s)
        if found is None:
            raise ConnectionLostError("no answer")
        return found

    def poll(self, wait_s: float) -> tuple[float, Any] | None:
        """The same, or nothing where nothing came in so long."""
        return self._stream.poll(wait_s)

    @property
    def answer_arrived(self) -> bool:
        """Whether something has arrived."""
        return self._stream.answer_arrived

    def reconnect(self) -> None:
        """Try until the server is there again, or for too long."""
        wait_s, until_s = FIRST_WAIT_S, monotonic_s() + PATIENCE_S
        while True:
            try:
                self.welcome = self._connect()
            except ConnectionLostError as lost:
                if monotonic_s() > until_s:
                    raise SkitError(f"the server {self.address} stayed away: {lost}; --resume goes on later") from lost
                Event().wait(wait_s)
                wait_s = min(2 * wait_s, MOST_WAIT_S)
            else:
                self.reconnections += 1
                return

    def close(self) -> None:
        """End the stream."""
        self._stream.end()
        if self._channel is not None:
            self._channel.close()

    def _connect(self) -> Any:
        self.close()
        options = [
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if self._caller.roots is None:
            self._channel = grpc.insecure_channel(self.address, options)
        else:
            credentials = grpc.ssl_channel_credentials(self._caller.roots)
            self._channel = grpc.secure_channel(self.address, credentials, options)
        self._stream = _Stream(self._channel, self._link)
        caller = self._caller
        hello = {"protocol": PROTOCOL, "tokenizer": caller.tokenizer, "vocabulary": caller.vocabulary}
        self._stream.send(Up(hello={**hello, "token": caller.token, "model_hash": caller.model_hash}))
        _, welcome = self.receive(WELCOME_S)
        return welcome.welcome


class _Nothing:
    """Before there is a stream."""

    answer_arrived = False

    def send(self, up: Any) -> None:
        raise ConnectionLostError("not connected")

    def poll(self, wait_s: float) -> tuple[float, Any] | None:
        raise ConnectionLostError("not connected")

    def end(self) -> None:
        return


class _Stream(_Nothing):
    """A call in progress. Shaped, frames pass through a lane in either direction."""

    def __init__(self, channel: Any, link: Link | None) -> None:
        self._out: SimpleQueue[Any] = SimpleQueue()
        self._in: SimpleQueue[tuple[float, Any]] = SimpleQueue()
        self._up = None if link is None else LinkDirection(link, link.up_bytes_per_s, "up", self._out.put)
        self._down = None if link is None else LinkDirection(link, link.down_bytes_per_s, "down", self._arrived)
        make = channel.stream_stream(METHOD, Up.SerializeToString, Down.FromString)
        self._call = make(iter(self._out.get, None))
        Thread(target=self._read, name="answers", daemon=True).start()

    @property
    def answer_arrived(self) -> bool:  # type: ignore[override]
        return not self._in.empty()

    def send(self, up: Any) -> None:
        if self._up is None:
            self._out.put(up)
        else:
            self._up.put(up, up.ByteSize())

    def poll(self, wait_s: float) -> tuple[float, Any] | None:
        try:
            moment_s, found = self._in.get(timeout=wait_s) if wait_s > 0 else self._in.get_nowait()
        except Empty:
            return None
        if isinstance(found, Exception):
            self._in.put((moment_s, found))
            raise _why(found)
        return moment_s, found

    def end(self) -> None:
        self._out.put(None)
        with suppress(Exception):
            self._call.cancel()

    def _read(self) -> None:
        try:
            for down in _answers(self._call):
                if self._down is None:
                    self._arrived(down)
                else:
                    self._down.put(down, down.ByteSize())
            raise ConnectionLostError("the server ended the stream")
        except (grpc.RpcError, ConnectionLostError) as error:
            self._in.put((monotonic_s(), error))

    def _arrived(self, down: Any) -> None:
        self._in.put((monotonic_s(), down))


def _answers(call: Any) -> Iterator[Any]:
    yield from call


def _why(error: Exception) -> Exception:
    """What ended a stream: a reason to try again, or one that stays."""
    if not isinstance(error, grpc.Call):
        return ConnectionLostError(str(error))
    if error.code() in FATAL:
        return SkitError(f"the server refused: {error.details()}")
    return ConnectionLostError(f"{error.code().name}: {error.details()}")
