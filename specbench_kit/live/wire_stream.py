"""Responses that a `skit serve` decodes by itself, received over a connection."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Event

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.open_frame import open_frame
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.streaming import StreamedRound
from specbench_kit.live.wire import RETRYABLE, Status, Up

MAX_TRIES = 200
"""How often a generation is begun at a server that refuses it for the time being."""


@dataclass(slots=True)
class _Generation:
    """A request's session at the server, and the number of the latest frame that asked for its response."""

    session: Session
    name: str
    round: int = 0
    refusals: int = 0


@dataclass
class WireStream:
    """Asks a `skit serve` to decode by itself; a response whose stream is lost goes on where it was.

    The server drafts too if it is given a `method`, which has to be one of those that it offers.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    method: str = ""
    _generations: dict[str, _Generation] = field(default_factory=dict)
    """Generations by the name of their session."""
    _names: dict[str, str] = field(default_factory=dict)
    """Names of sessions by request."""
    _nonce: str = field(default_factory=lambda: token_hex(8))
    """Keeps the names of sessions apart from those of other devices."""
    _begun: int = 0

    def __post_init__(self) -> None:
        if not self.connection.welcome.generates:
            raise SkitError(
                f"the server {self.connection.address} cannot decode by itself, which the baseline needs: leave the "
                "baseline out with --no-baseline"
            )

    def begin(self, session: Session) -> None:
        """Open a session for a new request, and ask for its response."""
        self._begun += 1
        name = f"{self._nonce}/{self._begun}/{session.request.id}"
        self._names[session.request.id] = name
        generation = self._generations[name] = _Generation(session, name)
        self._open(generation)
        self._ask(generation)

    def receive(self) -> Sequence[StreamedRound]:
        """Wait for tokens of any request; reconnect and ask for the rest if the connection is lost."""
        while True:
            try:
                arrived_s, frame = self.connection.receive()
            except ConnectionLostError:
                self.connection.reconnect()
                for generation in self._generations.values():
                    self._ask(generation)
                continue
            kind = frame.WhichOneof("kind")
            if kind == "generated" and (rounds := self._read(frame.generated, arrived_s)):
                return rounds
            if kind == "refused" and (refused := self._generations.get(frame.refused.session)) is not None:
                self._retry(refused, frame.refused)

    def end(self, session: Session) -> None:
        """Close the session of a finished request."""
        name = self._names.pop(session.request.id)
        del self._generations[name]
        self.connection.send(Up(close=messages.Close(session=name)))

    def _read(self, frame: messages.Generated, arrived_s: float) -> Sequence[StreamedRound]:
        """Return the tokens of a frame; none if it belongs to an earlier attempt or repeats what is here."""
        generation = self._generations.get(frame.session)
        if generation is None or frame.round != generation.round or frame.base != len(generation.session.tokens):
            return ()
        name = generation.session.request.id
        if frame.status == Status.REBASE:
            # What was committed while the connection was lost: nobody knows any more in which rounds.
            return [StreamedRound(name, [token], arrived_s) for token in frame.tokens]
        streamed = StreamedRound(
            name,
            list(frame.tokens),
            arrived_s,
            drafted=frame.drafted,
            submitted=frame.submitted,
            accepted=frame.accepted,
            computed=frame.computed,
            padded=list(frame.padded),
            queue_s=frame.queue_us / 1e6,
            draft_s=frame.draft_us / 1e6,
            # A request's part of the batch, so that the sum over requests is the time in which the server was busy.
            verify_s=frame.verify_us / 1e6 / max(1, frame.batch_size),
        )
        return [streamed] if frame.tokens else ()

    def _retry(self, generation: _Generation, refused: messages.Refused) -> None:
        """Ask again after a refusal; raise SkitError if the server would refuse again."""
        if refused.round not in (0, generation.round):
            return
        status = Status(refused.status)
        generation.refusals += 1
        if status is Status.UNKNOWN_SESSION:
            self._open(generation)
        elif status not in RETRYABLE or generation.refusals > MAX_TRIES:
            raise SkitError(f"the server refused to decode: {status.name}: {refused.reason}")
        Event().wait(refused.retry_ms / 1000)
        self._ask(generation)

    def _open(self, generation: _Generation) -> None:
        frame = open_frame(generation.session, generation.name, self.sampler, self.seed)
        self.connection.send(Up(open=frame))

    def _ask(self, generation: _Generation) -> None:
        """Ask for the response from the last token that is here on."""
        session = generation.session
        generation.round += 1
        frame = messages.Generate(
            session=generation.name,
            round=generation.round,
            base=len(session.tokens),
            max_tokens=session.request.max_new_tokens - session.produced,
            ends=sorted(session.eos_ids),
            method=self.method,
        )
        self.connection.send(Up(generate=frame))
