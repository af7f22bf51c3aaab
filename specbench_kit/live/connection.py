"""The edge's end of a stream to a server: frames go out, and answers wait with their times of
arrival.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Protocol

import grpc

from specbench_kit.core.addresses import is_loopback
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.emulated_link import LinkDirection
from specbench_kit.live.connection_options import host_and_port
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import METHOD, PROTOCOL, Down, Up
from specbench_kit.runs.deployment import Link

WELCOME_TIMEOUT_S = 20.0
FAILOVER_TIMEOUT_S = 5.0
"""How long one of several servers may take to answer before the next one is tried."""
RECONNECT_TIMEOUT_S = 120.0
"""How long a server may be away, or owe an answer, before a run ends."""
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
FATAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)
"""Codes of refusals that another attempt would meet again."""


class ConnectionLostError(Exception):
    """The stream ended because of the network or the server; another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The content of a client's hello, and the certificates that the client trusts."""

    tokenizer: str
    vocabulary: int
    token: str = ""
    model_hash: str = ""
    """Hash of the target with which the drafts were recorded, for a client that has no
    tokenizer.
    """
    device: str = ""
    """A secret of this device, without which its sessions are not found."""
    roots: bytes | None = None
    """Certificates, PEM, one of which must have signed the server's; without them nothing is
    encrypted.
    """
    server_name: str = ""
    """The name in the server's certificate, if it is not that of the host."""
    certificate: bytes | None = None
    key: bytes | None = None
    """The certificate of this device and its key, PEM, for a server that asks for one."""


class ResponseStream(Protocol):
    """gRPC's call of a stream, for which grpc ships no types."""

    def __iter__(self) -> Iterator[Down]:
        """Yield the server's frames."""

    def cancel(self) -> None:
        """End the call."""


class Connection:
    """A stream to one of several servers, which is renewed when it is lost, with another one if
    need be.

    `welcome` is the server's description of itself. Servers that stand in for each other hold the same target.
    """

    def __init__(
        self, address: str, identity: ClientIdentity, link: Link | None = None, wait_s: float = 0.0
    ) -> None:
        self.addresses = address.split(",")
        self._identity = identity
        self._link = link
        self._stream: _Stream | None = None
        self._current = self.reconnections = 0
        self.welcome = self._connect_to_any(wait_s)

    @property
    def address(self) -> str:
        """The address of the server that the stream leads to."""
        return self.addresses[self._current]

    def send(self, frame: Up) -> None:
        """Send a frame; if the stream is lost, the next `receive` says so."""
        self._open_stream.send(frame)

    def receive(self, timeout_s: float = RECONNECT_TIMEOUT_S) -> tuple[float, Down]:
        """Return the next frame with its time of arrival; raise ConnectionLostError if none
        comes.
        """
        answer = self.poll(timeout_s)
        if answer is None:
            raise ConnectionLostError("no answer")
        return answer

    def poll(self, timeout_s: float) -> tuple[float, Down] | None:
        """Return the next frame with its time of arrival, or None if none comes within
        `timeout_s`.
        """
        return self._open_stream.poll(timeout_s)

    @property
    def answer_arrived(self) -> bool:
        """Return True if a frame has arrived that was not received yet."""
        return self._open_stream.answer_arrived

    @property
    def _open_stream(self) -> "_Stream":
        assert self._stream is not None
        return self._stream

    def reconnect(self) -> None:
        """Try to connect again, at growing intervals; raise SkitError if all servers stay away."""
        before = self.welcome
        try:
            self.welcome = self._connect_to_any(RECONNECT_TIMEOUT_S)
        except ConnectionLostError as lost:
            servers = ", ".join(self.addresses)
            raise SkitError(
                f"the server {servers} stayed away: {lost}; --resume goes on later"
            ) from lost
        if (self.welcome.model_hash, self.welcome.dtype) != (before.model_hash, before.dtype):
            raise SkitError(
                f"{self.address} holds {self.welcome.model} in {self.welcome.dtype}, and the run began with "
                f"{before.model} in {before.dtype}: name servers of one target"
            )
        self.reconnections += 1

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.end()
            self._channel.close()
            self._stream = None

    def _connect_to_any(self, patience_s: float) -> messages.Welcome:
        """Return the welcome of the first server that answers, the latest one first; try for that
        long at least.
        """
        retry_s = FIRST_RETRY_S
        deadline_s = monotonic_s() + patience_s
        timeout_s = WELCOME_TIMEOUT_S if len(self.addresses) == 1 else FAILOVER_TIMEOUT_S
        while True:
            for _ in self.addresses:
                self.close()
                try:
                    return self._connect(timeout_s)
                except ConnectionLostError as error:
                    lost = error
                    self._current = (self._current + 1) % len(self.addresses)
            if monotonic_s() >= deadline_s:
                self.close()
                raise lost
            Event().wait(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    def _connect(self, timeout_s: float) -> messages.Welcome:
        """Open a stream, say hello, and return the server's welcome."""
        options: list[tuple[str, int | str]] = [
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            (
                "grpc.use_local_subchannel_pool",
                1,
            ),  # else all streams of a process share one connection
            (
                "grpc.max_receive_message_length",
                -1,
            ),  # a verdict may bring the hidden states of a long prompt
        ]
        if is_loopback(host_and_port(self.address)[0]):
            options.append(
                ("grpc.enable_http_proxy", 0)
            )  # else gRPC asks the environment's proxy for this machine
        identity = self._identity
        if identity.roots is None:
            self._channel = grpc.insecure_channel(self.address, options)
        else:
            if identity.server_name:
                options.append(("grpc.ssl_target_name_override", identity.server_name))
            credentials = grpc.ssl_channel_credentials(
                identity.roots, identity.key, identity.certificate
            )
            self._channel = grpc.secure_channel(self.address, credentials, options)
        self._stream = _Stream(self._channel, self._link)
        hello = messages.Hello(
            protocol=PROTOCOL,
            tokenizer=identity.tokenizer,
            vocabulary=identity.vocabulary,
            token=identity.token,
            model_hash=identity.model_hash,
            device=identity.device,
        )
        self._stream.send(Up(hello=hello))
        _, frame = self.receive(timeout_s)
        return frame.welcome


class _Stream:
    """A call in progress; with an emulated link, frames pass through a `LinkDirection` each way."""

    def __init__(self, channel: grpc.Channel, link: Link | None) -> None:
        self._outgoing: SimpleQueue[Up | None] = SimpleQueue()
        self._incoming: SimpleQueue[tuple[float, Down | Exception]] = SimpleQueue()
        self._uplink: LinkDirection[Up] | None = None
        self._downlink: LinkDirection[Down] | None = None
        if link is not None:
            self._uplink = LinkDirection(link, link.up_bytes_per_s, "up", self._outgoing.put)
            self._downlink = LinkDirection(link, link.down_bytes_per_s, "down", self._arrived)
        decode = channel.stream_stream(METHOD, Up.SerializeToString, Down.FromString)
        self._call: ResponseStream = decode(iter(self._outgoing.get, None))
        Thread(target=self._read, name="answers", daemon=True).start()

    @property
    def answer_arrived(self) -> bool:
        return not self._incoming.empty()

    def send(self, frame: Up) -> None:
        if self._uplink is None:
            self._outgoing.put(frame)
        else:
            self._uplink.put(frame, frame.ByteSize())

    def poll(self, timeout_s: float) -> tuple[float, Down] | None:
        try:
            arrived_s, answer = (
                self._incoming.get(timeout=timeout_s)
                if timeout_s > 0
                else self._incoming.get_nowait()
            )
        except Empty:
            return None
        if isinstance(answer, Exception):
            # Nothing comes after the end of the stream: whoever polls again has to meet it again.
            self._incoming.put((arrived_s, answer))
            if not isinstance(answer, grpc.Call):
                raise ConnectionLostError(str(answer))
            if answer.code() in FATAL:
                raise SkitError(f"the server refused: {answer.details()}")
            raise ConnectionLostError(f"{answer.code().name}: {answer.details()}")
        return arrived_s, answer

    def end(self) -> None:
        self._outgoing.put(None)
        with suppress(Exception):
            self._call.cancel()

    def _read(self) -> None:
        """Take frames from gRPC in a thread of its own, so that a frame's time of arrival is that
        of the network.
        """
        try:
            for frame in self._call:
                if self._downlink is None:
                    self._arrived(frame)
                else:
                    self._downlink.put(frame, frame.ByteSize())
            raise ConnectionLostError("the server ended the stream")
        except (grpc.RpcError, ConnectionLostError) as error:
            self._incoming.put((monotonic_s(), error))

    def _arrived(self, frame: Down) -> None:
        self._incoming.put((monotonic_s(), frame))
