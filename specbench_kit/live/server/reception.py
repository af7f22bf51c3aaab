"""Who may connect: the protocol, token, tokenizer and vocabulary of a hello, and how many streams are open."""

from dataclasses import dataclass
from typing import Protocol

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.accounts import Accounts, Caller, ServerLimits
from specbench_kit.live.server.drafts import LONGEST_NAME
from specbench_kit.live.server.metrics import ServerMetrics
from specbench_kit.live.server.sessions import AnswerStream, ServerSession
from specbench_kit.live.wire import PROTOCOL, Refusal, Status


class CallingStream(AnswerStream, Protocol):
    """A stream as the handler sees it."""

    caller: Caller
    peer: str
    sessions: dict[str, ServerSession]

    def attach(self, session: ServerSession) -> None:
        """Send the answers of a session over this stream from now on."""


@dataclass
class Reception:
    """Greets devices, and counts their streams."""

    limits: ServerLimits
    welcome: messages.Welcome
    metrics: ServerMetrics
    accounts: Accounts
    streams: int = 0

    def greet(self, hello: messages.Hello, peer: str = "", certified: str = "") -> Caller:
        """Return whom a device speaks for; raise Refusal if it is not welcome.

        Its protocol, token, tokenizer or vocabulary may be wrong, or its account may have too many streams.
        """
        if hello.protocol != PROTOCOL:
            raise Refusal(Status.WRONG_PROTOCOL, f"protocol {hello.protocol}; this server speaks {PROTOCOL}")
        if len(hello.device) > LONGEST_NAME:
            raise Refusal(Status.MALFORMED_FRAME, f"a device's name has up to {LONGEST_NAME} characters")
        caller = self.accounts.caller(hello, peer, certified)
        # A device that replays a recording has no tokenizer; it names the hash of the target that was recorded.
        if hello.tokenizer == self.welcome.tokenizer:
            _require_vocabulary(hello.vocabulary, self.welcome.vocabulary)
        elif hello.model_hash != self.welcome.model_hash:
            raise Refusal(Status.WRONG_TOKENIZER, "the draft model has another tokenizer than this server's target")
        most = caller.account.most_streams
        if caller.account.streams >= most or self.streams >= self.limits.streams:
            raise Refusal(
                Status.TOO_MANY_STREAMS, f"{most} streams are open for {caller.account.name}, as many as it may have"
            )
        return caller

    def join(self, stream: CallingStream) -> None:
        """Count a stream that was greeted."""
        self.streams += 1
        stream.caller.account.streams += 1
        self.metrics.streams.set(self.streams)

    def leave(self, stream: CallingStream) -> None:
        """Count a stream that has ended."""
        self.streams -= 1
        stream.caller.account.streams -= 1
        self.metrics.streams.set(self.streams)


def _require_vocabulary(sent: int, own: int) -> None:
    """Raise Refusal if a device's draft models and tokenizer know tokens that the target does not, or none at all."""
    if not 0 < sent <= own:
        raise Refusal(
            Status.WRONG_VOCABULARY, f"the draft model and its tokenizer have {sent} tokens, and the target has {own}"
        )
