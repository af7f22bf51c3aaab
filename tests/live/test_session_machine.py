"""Live sessions in orders that nobody wrote down, each answer compared with that of a model.

A device's frames, verifications and late verdicts come in turns. The model has the table of drafts in its own words:
of the server's cases it takes no more than the name of the answer, as the documentation prints it.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from live_server import TARGET, VOCABULARY
from offline_server import device, offline, read
from tiny_models import plain_greedy

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.draft_frames import CASES
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.wire import Status, Up

PROMPTS = ([3, 14, 15, 9, 2, 6], [5, 35, 8, 9], [8, 7, 9, 3, 2, 3, 8])
TEXTS = [prompt + plain_greedy(TARGET, prompt, 60)[0] for prompt in PROMPTS]
"""The target's own greedy texts, which every committed text begins."""
LONGEST_DRAFT = 4

NAMES = st.sampled_from(["a", "b"])
DRAFTS = st.tuples(st.integers(0, LONGEST_DRAFT), st.integers(0, LONGEST_DRAFT))
"""How many tokens are drafted, and which of them is the first wrong one."""


@dataclass
class SessionModel:
    """A session as the protocol has it. `length` is that of its text, prompt included."""

    text: list[int]
    prompt: int
    length: int
    is_connected: bool = True
    round: int | None = None
    sent: messages.Draft | None = None
    """The latest draft that was taken."""
    answer: messages.Verdict | None = None
    """The answer to it; its times are not known before it comes."""
    is_verified: bool = False
    """True from the verification of a round that is in flight to its verdict."""

    @property
    def in_flight(self) -> bool:
        return self.sent is not None and self.answer is None

    def row(self, draft: messages.Draft) -> int:
        """Return the row of the documentation's table, from 1 on, that answers a draft."""
        if draft.round == self.round and self.in_flight:
            return 1
        if draft.round == self.round and self.answer is not None:
            return 2
        if self.in_flight:
            return 4
        if self.round is not None and draft.round != self.round + 1:
            return 5
        if not self.prompt <= draft.base <= self.length:
            return 6
        return 9 if draft.base < self.length else 10

    def verify(self) -> messages.Verdict:
        """Commit the draft's right tokens and the one behind them; return what the verdict says."""
        assert self.sent is not None
        right = self.text[self.length :]
        accepted = 0
        while accepted < len(self.sent.tokens) and self.sent.tokens[accepted] == right[accepted]:
            accepted += 1
        verdict = messages.Verdict(
            round=self.sent.round,
            status=Status.OK,
            path=range(1, accepted + 1),
            bonus=right[accepted],
            base=self.length,
        )
        self.length += accepted + 1
        self.is_verified = True
        return verdict


@dataclass
class Device:
    """The device's names of sessions, and the verdicts that were verified and not delivered."""

    sessions: dict[str, SessionModel] = field(default_factory=dict)
    undelivered: list[tuple[SessionModel, str, messages.Verdict]] = field(default_factory=list)


class LiveSessions(RuleBasedStateMachine):
    """A device with up to two sessions at a server whose verification runs when a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = offline()
        self.stream = device(self.handler)
        self.model = Device()
        self.batches: list[list[VerifiedRound]] = []
        self.handler.batch_runner.deliver = self.batches.append

    # ---- What the device does.

    @initialize(first=st.sampled_from([0, 1, 2]), second=st.sampled_from([0, 1, 2]))
    def open_both(self, first: int, second: int) -> None:
        """Begin with two sessions."""
        self.open("a", first, 0)
        self.open("b", second, 0)

    @rule(name=NAMES, which=st.sampled_from([0, 1, 2]), held=st.integers(0, 12))
    def open(self, name: str, which: int, held: int) -> None:
        """Open a session, resume it with the text that the device has, or replace it by another."""
        text, prompt = TEXTS[which], len(PROMPTS[which])
        session = self.model.sessions.get(name)
        if session is not None and session.text is text:
            held = min(held, session.length - prompt)
        else:
            session = SessionModel(text, prompt, prompt + held)
        frame = {"session": name, "prompt": text[:prompt], "output": text[prompt : prompt + held]}
        self.stream.receive(Up(open={**frame, "sampling": {"request": name}}))
        self.model.sessions[name] = session
        session.is_connected = True
        opened = read(self.stream)
        committed = 0 if session.in_flight else session.length
        assert (opened.session, opened.committed) == (name, committed)

    @precondition(lambda self: self.model.sessions)
    @rule(name=NAMES, draft=DRAFTS)
    def draft(self, name: str, draft: tuple[int, int]) -> None:
        """Send the next draft."""
        if (session := self.model.sessions.get(name)) is not None:
            self.send(name, (session.round or 0) + 1, session.length, *draft)

    @precondition(lambda self: self.model.sessions)
    @rule(name=NAMES)
    def draft_again(self, name: str) -> None:
        """Send the latest draft again, as after a lost connection."""
        session = self.model.sessions.get(name)
        if session is not None and session.sent is not None:
            self.receive(name, session.sent)

    @precondition(lambda self: self.model.sessions)
    @rule(name=NAMES, missing=st.integers(1, 6), draft=DRAFTS)
    def draft_behind(self, name: str, missing: int, draft: tuple[int, int]) -> None:
        """Send the next draft after fewer tokens than the session has."""
        session = self.model.sessions.get(name)
        if session is not None and session.length - missing >= session.prompt:
            self.send(name, (session.round or 0) + 1, session.length - missing, *draft)

    @rule(name=NAMES, step=st.integers(0, 3), away=st.integers(-9, 3), draft=DRAFTS)
    def stray_draft(self, name: str, step: int, away: int, draft: tuple[int, int]) -> None:
        """Send any draft, maybe to a session that is not there."""
        session = self.model.sessions.get(name)
        if session is None:
            self.send(name, step, 6, *draft)
        else:
            self.send(name, (session.round or 0) + step, session.length + away, *draft)

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        """End a session, maybe one with a round in flight."""
        self.stream.receive(Up(close=messages.Close(session=name)))
        self.model.sessions.pop(name, None)

    @rule()
    def reconnect(self) -> None:
        """Lose the connection and make another one: sessions stay, and are nobody's for now."""
        lost = self.stream
        self.handler.leave(lost, "lost")
        lost.end()
        self.stream = device(self.handler)
        for session in self.model.sessions.values():
            session.is_connected = False

    # ---- What the server does.

    @rule()
    def verify(self) -> None:
        """Verify what is in flight; the event loop does not have the verdicts yet."""
        waiting = {
            name: session
            for name, session in self.model.sessions.items()
            if session.in_flight and not session.is_verified
        }
        with torch.inference_mode():
            self.handler.batch_runner._verify_next()
        self.model.undelivered += [
            (session, name, session.verify()) for name, session in waiting.items()
        ]

    @precondition(lambda self: self.batches)
    @rule()
    def deliver(self) -> None:
        """Hand all verdicts over: late ones of sessions that have ended say nothing."""
        for batch in self.batches:
            self.handler.answer(batch)
        self.batches.clear()
        expected: dict[str, messages.Verdict] = {}
        for session, name, verdict in self.model.undelivered:
            if self.model.sessions.get(name) is session:
                session.answer, session.is_verified = verdict, False
                if session.is_connected:
                    expected[name] = verdict
        self.model.undelivered.clear()
        for _ in range(len(expected)):
            self.require_verdict(read(self.stream), expected)

    def require_verdict(self, answer: Any, expected: dict[str, messages.Verdict]) -> None:
        """Take an answer for the verdict on the session that it names, once."""
        verdict = expected.pop(answer.session)
        for part in ("round", "status", "path", "bonus", "base"):
            assert getattr(answer, part) == getattr(verdict, part), part
        self.model.sessions[answer.session].answer = answer

    @rule(name=NAMES, draft=DRAFTS)
    def round(self, name: str, draft: tuple[int, int]) -> None:
        """Draft, verify and deliver, as it goes most of the time."""
        self.draft(name, draft)
        self.verify()
        self.deliver()

    @rule(name=NAMES, which=st.sampled_from([0, 1, 2]), draft=DRAFTS)
    def late_verdict(self, name: str, which: int, draft: tuple[int, int]) -> None:
        """Close a session while it is verified, and open another one of its name."""
        self.draft(name, draft)
        self.verify()
        self.close(name)
        self.open(name, which, 0)
        self.deliver()

    # ---- Drafts and their answers.

    def send(self, name: str, number: int, base: int, count: int, wrong: int) -> None:
        """Send a draft of `count` tokens, right up to the one at `wrong`."""
        session = self.model.sessions.get(name)
        text = TEXTS[0] if session is None else session.text
        if session is not None and session.length + 2 * LONGEST_DRAFT > len(text):
            return  # nothing is known of the text behind
        tokens = text[base : base + count] if base >= 0 else []
        if wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % VOCABULARY
        self.receive(
            name,
            messages.Draft(session=name, round=max(number, 0), base=max(base, 0), tokens=tokens),
        )

    def receive(self, name: str, draft: messages.Draft) -> None:
        """Let the server have a draft, and compare what it answers at once with the table."""
        self.stream.receive(Up(draft=draft))
        session = self.model.sessions.get(name)
        if session is None:
            refused = read(self.stream)
            assert (refused.round, refused.status) == (draft.round, Status.UNKNOWN_SESSION)
            return
        session.is_connected = True
        row = session.row(draft)
        named = re.match("[A-Z_]{2,}", CASES[row - 1].answer)
        if row == 1:
            return
        if row == 2:
            answer = read(self.stream)
            assert session.answer is not None
            if session.answer.batch_size or session.answer.status == Status.REBASE:
                assert answer == session.answer
            else:  # nobody was connected when it came
                self.require_verdict(answer, {name: session.answer})
        elif row == 9:
            answer = read(self.stream)
            assert named is not None
            assert Status(answer.status).name == named[0]
            assert list(answer.suffix) == session.text[draft.base : session.length]
            session.round, session.sent, session.answer = draft.round, draft, answer
        elif row == 10:
            session.round, session.sent, session.answer = draft.round, draft, None
        else:
            answer = read(self.stream)
            assert named is not None
            assert (answer.round, Status(answer.status).name) == (draft.round, named[0])

    # ---- What always holds.

    @invariant()
    def every_text_is_the_targets_own(self) -> None:
        """No session has tokens of another one, and those that were committed are the greedy ones."""
        sessions = {session.name: session for session in self.handler.sessions}
        assert sessions.keys() == self.model.sessions.keys()
        for name, session in self.model.sessions.items():
            assert sessions[name].text.tokens == session.text[: session.length]

    @invariant()
    def nothing_else_is_said(self) -> None:
        """Each frame has had its answer, and no other one came."""
        assert self.stream.unread == 0

    @invariant()
    def what_is_in_flight_is_counted(self) -> None:
        """The account's share of the queue goes by the rounds that are in flight."""
        in_flight = sum(session.in_flight for session in self.model.sessions.values())
        assert self.stream.caller.account.in_flight == in_flight


TestLiveSessions = LiveSessions.TestCase
TestLiveSessions.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # With Phase.shrink a failure is told in fewest steps, which takes minutes.
    phases=[Phase.generate],
)
