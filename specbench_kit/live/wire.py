"""The wire format: the messages of protocol/verification.proto, the statuses, and the version of
both.

A status from `UNKNOWN_SESSION` on refuses a frame.
"""

from collections.abc import Sequence
from enum import IntEnum, unique
from hashlib import blake2b, sha256
from struct import pack
from typing import TYPE_CHECKING

from specbench_kit.live.protocol.verification_pb2 import Down, Up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "METHOD",
    "PROTOCOL",
    "RETRYABLE",
    "SERVICE",
    "Down",
    "Status",
    "Up",
    "text_hash",
    "tokenizer_hash",
]

PROTOCOL = 1
SERVICE = "specbench_kit.live.Verification"
METHOD = f"/{SERVICE}/Decode"


@unique
class Status(IntEnum):
    """The outcome of a frame; from `UNKNOWN_SESSION` on it was refused, by that name in logs,
    metrics and errors.
    """

    OK = 0
    DEGRADED = 1
    """The server is overloaded: it answered with the target's own next token and verified no
    draft.
    """
    REBASE = 2
    """The session is ahead of the device: `suffix` holds the tokens that the device lacks."""
    STALE = 3
    """The draft, which was sent ahead, does not fit the session's text: it was dropped."""
    UNKNOWN_SESSION = 10
    OUT_OF_ORDER = 11
    WRONG_BASE = 12
    IN_FLIGHT = 13
    TOO_MANY_AHEAD = 14
    TOKEN_OUTSIDE_VOCABULARY = 20
    BROKEN_TREE = 21
    TOO_MANY_NODES = 22
    CONTEXT_FULL = 23
    BROKEN_DISTRIBUTION = 24
    BROKEN_SAMPLING = 25
    EMPTY_PROMPT = 26
    BROKEN_DEADLINE = 27
    UNKNOWN_METHOD = 28
    BROKEN_STATES = 29
    TOO_MANY_SESSIONS = 30
    OVERLOADED = 31
    GOING_AWAY = 32
    FAILED = 33
    NO_HELLO = 40
    WRONG_PROTOCOL = 41
    WRONG_TOKENIZER = 42
    WRONG_TOKEN = 43
    MALFORMED_FRAME = 44
    FLOOD = 45
    IDLE = 46
    TOO_MANY_STREAMS = 47
    WRONG_VOCABULARY = 48
    BROKEN_GRAMMAR = 50


RETRYABLE = (Status.OVERLOADED, Status.GOING_AWAY, Status.IN_FLIGHT, Status.TOO_MANY_SESSIONS)
"""Temporary refusals, after which the same frame may be sent again."""


def tokenizer_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a hash of all tokens with their ids, without the tokens that were added to the
    vocabulary.
    """
    added = tokenizer.get_added_vocab()
    entries = sorted(
        (number, token) for token, number in tokenizer.get_vocab().items() if token not in added
    )
    return sha256(repr(entries).encode()).hexdigest()[:32]


def text_hash(tokens: Sequence[int]) -> int:
    """Return a number of 64 bits that stands for a text, by which a draft that was made for another
    one is known.
    """
    content = pack(f"<{len(tokens)}I", *tokens)
    return int.from_bytes(blake2b(content, digest_size=8).digest())


class Refusal(Exception):
    """Refuses one frame of a session, or ends the whole stream if the frame belongs to no session.

    `retry_ms` is after how long the frame may be sent again, if at all.
    """

    def __init__(self, status: Status, reason: str, retry_ms: int = 0) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self.reason = reason
        self.retry_ms = retry_ms
