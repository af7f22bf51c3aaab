"""The cases of a draft over the wire: each is met, the first that holds is taken, and the docs have them all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from offline_server import ANSWER, PROMPT, device, offline, open_session, read, send_draft, verify

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.draft_frames import CASES, Behind, New, Refused, Resent, classify
from specbench_kit.live.server.generation import Generation
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Status
from specbench_kit.reports.render_markdown import table

DOCS = Path(__file__).parents[2] / "docs" / "recipes" / "live.md"
LENGTH = len(PROMPT) + 3
"""Tokens of a session's text after its first round."""


@pytest.fixture
def session() -> ServerSession:
    """A session whose first round, of number 1, was answered."""
    handler = offline()
    stream = device(handler)
    opened = open_session(stream, "s")
    send_draft(stream, "s")
    verify(handler)
    read(stream)
    assert (opened.round, len(opened.text.tokens), opened.in_flight) == (1, LENGTH, False)
    return opened


def frame(number: int = 2, base: int = LENGTH, states: int = 0) -> messages.Draft:
    return messages.Draft(session="s", round=number, base=base, states=states)


def kept(session: ServerSession) -> None:
    del session


def flying(session: ServerSession) -> None:
    session.begin_round()


def unasked(session: ServerSession) -> None:
    session.begin_round(Generation(1, 5, frozenset(), 1.0, unasked=True))


def with_states(session: ServerSession) -> None:
    session.layers = (1,)


def forgotten(session: ServerSession) -> None:
    session.layers, session.last_answer = (1,), None


@pytest.mark.parametrize(
    ("change", "sent", "case", "expected"),
    [
        (flying, frame(1), 0, "None"),
        (kept, frame(1), 1, "the last answer"),
        (forgotten, frame(1), 2, "UNKNOWN_SESSION, ends"),
        (flying, frame(2), 3, "IN_FLIGHT"),
        (unasked, frame(1), 3, "IN_FLIGHT"),
        (kept, frame(3), 4, "OUT_OF_ORDER"),
        (kept, frame(base=len(PROMPT) - 1), 5, "WRONG_BASE"),
        (kept, frame(base=LENGTH + 1), 5, "WRONG_BASE"),
        (with_states, frame(states=LENGTH), 6, "BROKEN_STATES"),
        (with_states, frame(base=LENGTH - 1, states=LENGTH - 2), 7, "UNKNOWN_SESSION, ends"),
        (with_states, frame(states=0), 7, "UNKNOWN_SESSION, ends"),
        (kept, frame(base=LENGTH - 2), 8, f"lacks {ANSWER[1:3]}"),
        (kept, frame(), 9, "new"),
        (with_states, frame(states=LENGTH - 1), 9, "new"),
    ],
)
def test_every_case_is_met_and_told_apart(
    change: Callable[[ServerSession], None],
    sent: messages.Draft,
    case: int,
    expected: str,
    session: ServerSession,
) -> None:
    change(session)
    assert [entry.holds(session, sent) for entry in CASES].index(True) == case
    last = session.last_answer
    assert said(classify(session, sent), last) == expected


def said(outcome: object, last: Down | None) -> str:
    match outcome:
        case Resent(None):
            return "None"
        case Resent(answer):
            return "the last answer" if answer is last else "another answer"
        case Behind(missed):
            return f"lacks {list(missed)}"
        case Refused(refusal, ends):
            return Status(refusal.status).name + (", ends" if ends else "")
        case New():
            return "new"
    raise AssertionError(outcome)


def test_the_documentation_has_the_cases_in_their_order() -> None:
    rows = [[str(number), case.when, case.answer] for number, case in enumerate(CASES, start=1)]
    written = table(["", "a draft", "the server answers"], rows)
    assert written in DOCS.read_text(), f"docs/recipes/live.md must hold:\n{written}"
