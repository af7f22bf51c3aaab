"""What a draft over the wire is to a session: new, sent again, behind the session's text, or refused.

`CASES` is the whole of it, tried from above; the documentation prints it as a table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Refusal, Status

IN_FLIGHT_RETRY_MS = 10


@dataclass(frozen=True, slots=True)
class New:
    """The next round: it is to be verified."""


@dataclass(frozen=True, slots=True)
class Resent:
    """A round that the server has had: `answer` is sent again; None says that the verdict is yet to
    come.
    """

    answer: Down | None


@dataclass(frozen=True, slots=True)
class Behind:
    """A draft after fewer tokens than the session has: the device lacks `missed`."""

    missed: Sequence[int]


@dataclass(frozen=True, slots=True)
class Refused:
    """A frame that is answered by a refusal; with `ends`, a reason for the log, the session ends."""

    refusal: Refusal
    ends: str = ""


Outcome = New | Resent | Behind | Refused


class Case(NamedTuple):
    """A case of a draft, the server's answer in words, and both as the server finds them."""

    when: str
    answer: str
    holds: Callable[[ServerSession, messages.Draft], bool]
    outcome: Callable[[ServerSession, messages.Draft], Outcome]


def classify(session: ServerSession, frame: messages.Draft) -> Outcome:
    """Return what a draft is to its session, which is left as it was."""
    case = next(case for case in CASES if case.holds(session, frame))
    return case.outcome(session, frame)


def _is_known(session: ServerSession, frame: messages.Draft) -> bool:
    """Return whether the device has sent this very round before.

    What the server decodes unasked, for a device that was silent, has the number of a round too.
    """
    return session.round == frame.round and not session.decodes_unasked


def _is_outside(session: ServerSession, frame: messages.Draft) -> bool:
    text = session.text
    return not len(text.request.prompt_ids) <= frame.base <= len(text.tokens)


def _lacks_states(session: ServerSession, frame: messages.Draft) -> bool:
    """Return whether no forward can give the hidden states that a device asks for.

    A forward gives the states of tokens that are not in KV.
    """
    is_late = frame.base < len(session.text.tokens) or frame.states < session.cached
    return bool(session.layers) and is_late


def _refused(
    status: Status, reason: str, retry_ms: int = 0
) -> Callable[[ServerSession, messages.Draft], Refused]:
    """Return the outcome of a refusal, whose reason may name what the session and the frame have."""

    def outcome(session: ServerSession, frame: messages.Draft) -> Refused:
        said = reason.format(session=session, frame=frame, length=len(session.text.tokens))
        return Refused(Refusal(status, said, retry_ms=retry_ms))

    return outcome


def _ended(reason: str, because: str) -> Callable[[ServerSession, messages.Draft], Refused]:
    """Return the outcome of a session that cannot go on: the device opens it again."""
    return lambda _, __: Refused(Refusal(Status.UNKNOWN_SESSION, reason), because)


CASES = (
    Case(
        "The round is being verified already.",
        "Nothing at once: its verdict comes when it is there. No round is verified twice.",
        lambda session, frame: _is_known(session, frame) and session.in_flight,
        lambda _, __: Resent(None),
    ),
    Case(
        "The round was answered, and the answer is kept.",
        "The same answer again.",
        lambda session, frame: _is_known(session, frame) and session.last_answer is not None,
        lambda session, _: Resent(session.last_answer),
    ),
    Case(
        "The round was answered with hidden states, which were too long to be kept.",
        "UNKNOWN_SESSION: the session ends, and the device opens it again with its text.",
        lambda session, frame: session.round == frame.round and bool(session.layers),
        _ended(
            "open it again: the answer to this round is gone",
            "its latest answer was too long to be kept",
        ),
    ),
    Case(
        "Another round is not answered yet, or tokens that nobody asked for are being decoded.",
        "IN_FLIGHT: the device sends the draft again; what nobody asked for ends.",
        lambda session, _: session.in_flight,
        _refused(Status.IN_FLIGHT, "round {session.round} is not answered yet", IN_FLIGHT_RETRY_MS),
    ),
    Case(
        "The number is not that of the next round.",
        "OUT_OF_ORDER.",
        lambda session, frame: session.round is not None and frame.round != session.round + 1,
        _refused(Status.OUT_OF_ORDER, "round {frame.round} after round {session.round}"),
    ),
    Case(
        "It begins inside of the prompt, or behind the session's text.",
        "WRONG_BASE.",
        _is_outside,
        _refused(Status.WRONG_BASE, "after {frame.base} tokens; the session has {length}"),
    ),
    Case(
        "It claims the hidden states of its own first token.",
        "BROKEN_STATES.",
        lambda session, frame: bool(session.layers) and frame.states >= frame.base,
        _refused(
            Status.BROKEN_STATES,
            "states of {frame.states} tokens before a draft after {frame.base}",
        ),
    ),
    Case(
        "It asks for hidden states that no forward gives any more, as the device missed an answer.",
        "UNKNOWN_SESSION: the session ends, and the device opens it again with its text.",
        _lacks_states,
        _ended(
            "open it again: hidden states that the device lacks are gone",
            "its hidden states are gone",
        ),
    ),
    Case(
        "It is late: the session's text has gone on without it.",
        "REBASE: the tokens that the device lacks, in place of a verdict.",
        lambda session, frame: frame.base < len(session.text.tokens),
        lambda session, frame: Behind(session.text.tokens[frame.base :]),
    ),
    Case(
        "None of these.",
        "The round is queued, unless the server is full (OVERLOADED, or DEGRADED with the target's own token) or the "
        "draft is malformed; the verdict is OK.",
        lambda _, __: True,
        lambda _, __: New(),
    ),
)
"""All cases of a draft to a session that is there and not decoded ahead, the first that holds being
taken.
"""
