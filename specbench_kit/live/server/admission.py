"""Admission: who may connect, and what the devices of one access token, or of one host, may use of
the server.

A stream is admitted by its hello, a round by how many wait, and a frame by the bytes that were read
in a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import TYPE_CHECKING

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import PROTOCOL, Refusal, Status

if TYPE_CHECKING:
    from prometheus_client import Gauge

LONGEST_NAME = 256
"""Characters in the name of a session, of its stream of random numbers, and of a device."""
DEFAULT_DEADLINE_S = 60.0
"""The deadline, from arrival, of a round whose device names none."""
BACKOFF_MS = 100
"""After how long a device may send a round again that an overloaded or stopping server refused."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on memory and time per device; a frame beyond one of them is refused with the status
    that names it.

    `Welcome` tells devices those that they must keep.
    """

    sessions: int = 4096
    """Sessions remembered at a time."""
    nodes: int = 256
    """Tokens in one draft."""
    context: int = 1024
    """Tokens in one session, prompt and draft included."""
    frame_bytes: int = 1 << 20
    credit: int = 256
    """Answers that one stream may leave unread, so that a device that does not read cannot fill the
    memory.
    """
    unread_bytes: int = 64 << 20
    """Bytes of answers that one stream may leave unread before its frames wait."""
    token_unread_bytes: int = 256 << 20
    """The same for all devices with one access token."""
    streams: int = 1024
    """Devices connected at a time."""
    stream_sessions: int = 1024
    """Sessions of one stream."""
    token_sessions: int = 0
    """Sessions of all devices with one access token; 0 stands for an equal share of `sessions`."""
    token_streams: int = 0
    """Streams of all devices with one access token; 0 stands for an equal share of `streams`."""
    stream_bytes_per_s: float = 16e6
    """Bytes that are read from one stream in a second; a device that sends more waits."""
    token_bytes_per_s: float = 64e6
    """The same for all devices with one access token."""
    connection_streams: int = 100
    """Streams that one network connection may have open at a time."""
    ahead: int = 16
    """Drafts of one session that may wait for the ones before them."""
    candidates: int = 1024
    """Entries in the distribution of a sampled draft token."""
    waiting: int = 256
    """Rounds in the queue from which on the server verifies no drafts and commits one token per
    round instead, for devices whose access token has more than its share of them; with twice as
    many it refuses their new rounds.
    """
    idle_s: float = 600.0
    """Time without a frame after which a stream is ended and a session forgotten."""
    hello_s: float = 10.0
    """Time in which a new network connection must open a stream, and a new stream must say
    hello.
    """
    heartbeat_s: float = 20.0
    """Interval of the pings that find out whether a silent device is still there."""


FRAME_BYTES = 1024
"""What a frame counts at least, since the smallest one takes time as well."""


@dataclass(slots=True)
class ByteRate:
    """A bucket that holds the bytes of one second and is filled again at `bytes_per_s`."""

    bytes_per_s: float
    _missing: float = 0.0
    """Bytes that were taken out and are not filled up yet."""
    _at_s: float = 0.0

    def pause_s(self, size: int, now_s: float) -> float:
        """Take a frame's bytes out, and return for how long nothing more should be read."""
        self._missing = max(0.0, self._missing - (now_s - self._at_s) * self.bytes_per_s) + max(
            size, FRAME_BYTES
        )
        self._at_s = now_s
        return max(0.0, self._missing / self.bytes_per_s - 1)


REMEMBERED = 1024
"""Accounts beyond which those that use nothing are forgotten."""


@dataclass(slots=True, eq=False)
class Account:
    """The use of the server by those who share one access token, and what they may use at most.

    Everything but the bounds belongs to the event loop.
    """

    name: str
    """How logs name it; never the token itself."""
    rate: ByteRate
    most_sessions: int
    most_streams: int
    sessions: int = 0
    streams: int = 0
    in_flight: int = 0
    """Rounds that wait or are verified."""
    unread_bytes: int = 0
    """Bytes of answers that wait to be written."""
    evictions: int = 0
    """Sessions that lost their KV; belongs to the verification thread."""

    @property
    def idle(self) -> bool:
        """Return True if it uses nothing."""
        return not (self.sessions or self.streams or self.in_flight)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a stream speaks for: the account that is charged, and the owner without whom its
    sessions are not found.
    """

    account: Account
    owner: str = ""


@dataclass
class Admission:
    """Greets devices and charges their accounts; without access tokens, each host has its own
    account.
    """

    limits: ServerLimits
    welcome: messages.Welcome
    open_streams: "Gauge"
    tokens: Sequence[str] = ()
    streams: int = 0
    stopping: bool = False
    """True from when on no new rounds are taken."""
    _accounts: dict[str, Account] = field(default_factory=dict)

    def greet(self, hello: messages.Hello, peer: str = "", certified: str = "") -> Caller:
        """Return whom a device speaks for; raise Refusal if it is not welcome.

        Its protocol, token, tokenizer or vocabulary may be wrong, or its account may have too many
        streams.
        """
        if hello.protocol != PROTOCOL:
            raise Refusal(
                Status.WRONG_PROTOCOL, f"protocol {hello.protocol}; this server speaks {PROTOCOL}"
            )
        if len(hello.device) > LONGEST_NAME:
            raise Refusal(
                Status.MALFORMED_FRAME, f"a device's name has up to {LONGEST_NAME} characters"
            )
        caller = self.caller(hello, peer, certified)
        # A device that replays a recording has no tokenizer; it names the hash of the target that
        # was recorded.
        if hello.tokenizer == self.welcome.tokenizer:
            _require_vocabulary(hello.vocabulary, self.welcome.vocabulary)
        elif hello.model_hash != self.welcome.model_hash:
            raise Refusal(
                Status.WRONG_TOKENIZER,
                "the draft model has another tokenizer than this server's target",
            )
        most = caller.account.most_streams
        if caller.account.streams >= most or self.streams >= self.limits.streams:
            raise Refusal(
                Status.TOO_MANY_STREAMS,
                f"{most} streams are open for {caller.account.name}, as many as it may have",
            )
        return caller

    def count_stream(self, account: Account, change: int) -> None:
        """Count a stream that was greeted by 1, and one that has ended by -1."""
        self.streams += change
        account.streams += change
        self.open_streams.set(self.streams)

    def require_capacity(self, account: Account, waiting: int) -> bool:
        """Return whether a new round's draft is left out because of overload; raise Refusal if it
        is not taken at all.

        An account that has no more than its share of the `waiting` rounds never meets the overload
        that others cause.
        """
        most = self.limits.waiting
        if self.stopping:
            raise Refusal(Status.GOING_AWAY, f"{waiting} rounds wait", retry_ms=BACKOFF_MS)
        overloads = waiting >= most and account.in_flight >= most // self.active
        if overloads and waiting >= 2 * most:
            raise Refusal(Status.OVERLOADED, f"{waiting} rounds wait", retry_ms=BACKOFF_MS)
        return overloads

    def caller(self, hello: messages.Hello, peer: str, certified: str = "") -> Caller:
        """Return whom a hello speaks for; raise Refusal if the server asks for tokens and has no
        such one.

        `peer` is the address as gRPC gives it, and `certified` the name in the device's certificate, if it has one.
        """
        if not self.tokens:
            name = f"certificate {certified}" if certified else f"host {_host(peer)}"
            return Caller(self._account(name), f"{certified}/{hello.device}")
        sent = hello.token.encode()
        matches = [
            number
            for number, token in enumerate(self.tokens, 1)
            if compare_digest(sent, token.encode())
        ]
        if not matches:
            raise Refusal(Status.WRONG_TOKEN, "this server needs a token from its --token-file")
        return Caller(
            self._account(f"token {matches[0]}"), f"{matches[0]}/{certified}/{hello.device}"
        )

    @property
    def active(self) -> int:
        """The number of accounts that use anything at the moment, at least 1."""
        return max(1, sum(not account.idle for account in self._accounts.values()))

    def _account(self, name: str) -> Account:
        """Return the account of a name; each has an equal share of what all tokens may use."""
        if name not in self._accounts:
            if len(self._accounts) >= REMEMBERED:
                self._accounts = {
                    known: account for known, account in self._accounts.items() if not account.idle
                }
            limits = self.limits
            shares = max(1, len(self.tokens))
            self._accounts[name] = Account(
                name,
                ByteRate(limits.token_bytes_per_s),
                limits.token_sessions or max(1, limits.sessions // shares),
                limits.token_streams or max(1, limits.streams // shares),
            )
        return self._accounts[name]


def _host(peer: str) -> str:
    """Return the host of gRPC's `ipv4:127.0.0.1:5000`; other kinds of address are one host each."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer


def _require_vocabulary(sent: int, own: int) -> None:
    """Raise Refusal if a device's draft models and tokenizer know tokens that the target does not,
    or none at all.
    """
    if not 0 < sent <= own:
        raise Refusal(
            Status.WRONG_VOCABULARY,
            f"the draft model and its tokenizer have {sent} tokens, and the target has {own}",
        )
