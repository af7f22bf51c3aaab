"""The device's end of drafts that are sent ahead of their verdicts, over a scripted connection: every case by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from known_drafts import SURE, Known, KnownDrafter
from test_answers_of_a_batch import LOST, Scripted
from tiny_models import GREEDY

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.free_running import (
    AnswerPollingDrafter,
    FreeRunningDrafter,
    FreeRunningVerifier,
)
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import Down, Status, text_hash
from specbench_kit.live.wire_verifier import MAX_TRIES


class Polled(Scripted):
    """Answers whoever waits, and whoever looks without waiting."""

    def poll(self, timeout_s: float) -> tuple[float, Down] | None:
        assert timeout_s == 0
        return self.receive() if self.answers else None


class Device:
    """A device with requests of four tokens each, whose chains go out in chunks of two."""

    def __init__(self, requests: int = 1, ahead: int = 4) -> None:
        self.connection, self.splits = (
            Polled(welcome=messages.Welcome(limits={"ahead": ahead})),
            list[Any](),
        )
        clock: Any = SimpleNamespace(split=lambda *parts: self.splits.append(parts))
        self.verifier = FreeRunningVerifier(self.connection, GREEDY, 0, clock, 2)  # type: ignore[arg-type]
        self.drafts: list[Draft] = KnownDrafter([[SURE]] * requests, context=4).drafts
        for draft in self.drafts:
            self.verifier.admit(draft.session)
        self.names = [frame.session for frame in self.connection.frames("open")]

    def grow(self, *tokens: int, request: int = 0) -> None:
        """Append tokens to a chain."""
        tree = self.drafts[request].tree
        for token in tokens:
            tree.add(token, tree.last, Known(SURE, sampled=False), 0)

    def send(self, *tokens: int) -> PendingVerdicts:
        """Begin a round of the first request with a chain of these tokens."""
        self.drafts[0].tree = TokenTree(self.drafts[0].session.tokens[-1])
        self.grow(*tokens)
        return self.verifier.send(self.drafts[:1], [[]])

    def take(self, pending: PendingVerdicts) -> Verdict:
        """Commit the verdict of the first request."""
        (verdict,) = pending()
        self.drafts[0].session.tokens += verdict.tokens
        return verdict

    def answer(
        self,
        number: int = 0,
        base: int = 4,
        request: int = 0,
        arrived_s: float = 0.0,
        **more: object,
    ) -> None:
        verdict = {"session": self.names[request], "round": number, "base": base, **more}
        self.connection.answers.append((arrived_s, Down(verdict=verdict)))

    def refuse(self, number: int, status: Status) -> None:
        refused = {"session": self.names[0], "round": number, "status": status, "reason": "why"}
        self.connection.answers.append((0.0, Down(refused=refused)))

    def sent(self) -> list[tuple[int, int, list[int]]]:
        """Return number, base and tokens of every chunk that was sent."""
        return [
            (frame.round, frame.base, [*frame.tokens]) for frame in self.connection.frames("draft")
        ]

    def bytes(self, *numbers: int) -> int:
        """Return the bytes of the frames of some chunks."""
        frames = [frame for frame in self.connection.sent if frame.WhichOneof("kind") == "draft"]
        return sum(frame.ByteSize() for frame in frames if frame.draft.round in numbers)


def test_whole_chunks_are_sent_with_a_hash_of_the_text_before_them() -> None:
    device = Device()
    device.send(11, 12, 13, 14, 15)
    assert device.sent() == [(1, 4, [11, 12]), (2, 6, [13, 14])]
    device.grow(16)
    device.verifier.offer(device.drafts[0])
    assert device.sent()[2:] == [(3, 8, [15, 16])]
    text = [1] * 4 + [11, 12, 13, 14, 15, 16]
    frames = device.connection.frames("draft")
    assert [frame.text_hash for frame in frames] == [
        text_hash(text[:length]) for length in (4, 6, 8)
    ]
    assert {frame.session for frame in frames} == {*device.names}


def test_an_answer_returns_the_credit_of_its_chunk() -> None:
    """Two chunks may be without an answer; one is dropped, and the third one goes out at once."""
    device = Device(ahead=2)
    pending = device.send(11, 12, 13, 14, 15, 16)
    assert device.sent() == [(1, 4, [11, 12]), (2, 6, [13, 14])]
    device.answer(2, status=Status.STALE)
    device.answer(1, path=[1, 2], bonus=13)
    assert device.take(pending).tokens == [11, 12, 13]
    assert device.sent()[2:] == [(3, 8, [15, 16])]


def test_a_verdict_is_on_what_the_text_lacks_of_its_chunk() -> None:
    """The server has decoded the first token itself: of the first chunk one token is left, of which it takes none."""
    device = Device()
    device.answer(bonus=11)
    device.answer(1, base=5, bonus=99, computed=2, padded=[2, 1])
    assert device.take(device.send(11, 12, 13, 14)).tokens == [11]
    second = device.take(device.send(12, 13, 14))
    assert (second.tokens, second.submitted, second.path) == ([99], [1], [])
    assert (second.computed, [*second.padded]) == (2, [2, 1])
    device.send(21, 22)
    assert device.sent() == [(1, 4, [11, 12]), (2, 6, [13, 14]), (3, 6, [21, 22])], (
        "a new chain begins behind it"
    )


def test_bytes_are_counted_with_the_next_verdict_and_once() -> None:
    """Both chunks behind a wrong token are dropped; the next round sends one more."""
    device = Device()
    pending = device.send(11, 12, 13, 14, 15, 16)
    device.answer(1, bonus=99)
    first = device.take(pending)
    assert (first.sent_bytes, first.stale_bytes) == (device.bytes(1, 2, 3), 0)
    pending = device.send(21, 22)
    device.answer(2, status=Status.STALE)
    device.answer(3, status=Status.STALE)
    device.answer(77, status=Status.STALE)  # of a chunk that was given up
    device.answer(4, base=5, path=[1, 2], bonus=23)
    second = device.take(pending)
    assert (second.sent_bytes, second.stale_bytes) == (device.bytes(4), device.bytes(2, 3))
    assert second.tokens == [21, 22, 23]


def test_all_chunks_that_no_longer_stand_are_counted_when_the_connection_is_lost() -> None:
    """Two chunks behind a wrong token have no answer yet."""
    device = Device()
    pending = device.send(11, 12, 13, 14, 15, 16)
    device.answer(1, bonus=99)
    device.take(pending)
    pending = device.send()
    device.connection.answers.append(LOST)
    device.answer(base=5, bonus=7)
    assert device.take(pending).stale_bytes == device.bytes(2, 3)


@pytest.mark.parametrize(
    ("chunk_of_last", "link_s"),
    [(1, 1.5), (0, 0.0)],  # nobody asked for a token that the server decoded by itself
)
def test_the_answer_that_came_last_says_where_the_wait_went(
    chunk_of_last: int, link_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are sent at 100 s, the wait lasts from 101 to 104, and the answers came at 102 and 103."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("specbench_kit.live.free_running.monotonic_s", lambda: now.s)
    device = Device(requests=2)
    for request in range(2):
        device.grow(11, 12, request=request)
    pending = device.verifier.send(device.drafts, [[], []])
    device.answer(1, request=1, arrived_s=102.0, bonus=8, queue_us=10_000, verify_us=20_000)
    device.answer(chunk_of_last, arrived_s=103.0, bonus=9, queue_us=500_000, verify_us=1_000_000)
    now.s, receive = 101.0, device.connection.receive

    def late(timeout_s: float = 0.0) -> tuple[float, Down]:
        now.s = 104.0
        return receive(timeout_s)

    device.connection.receive = late  # type: ignore[method-assign]
    assert [verdict.bonus for verdict in pending()] == [9, 8]
    assert device.splits == [("verify", 1.0, 3.0, [("link", link_s, 2), ("queue", 0.5, 1)])]


@pytest.mark.parametrize("text", [[7, 8, 50], [7, 60, 61], [60, 61], [7, 8, 9, 50]])
@pytest.mark.parametrize("known", [0, 2])
def test_what_a_server_committed_alone_is_taken_round_by_round(text: list[int], known: int) -> None:
    """A round takes what its chain has of it and one token more; what was known before is passed over."""
    device = Device()
    device.answer(base=2, status=Status.REBASE, suffix=[1, 1])
    device.answer(base=4 - known, status=Status.REBASE, suffix=[1] * known + text)
    taken: list[int] = []
    while len(taken) < len(text):
        verdict = device.take(device.send(*[7, 8, 9][len(taken) :]))
        assert verdict.path == [*range(1, len(verdict.tokens))]
        taken += verdict.tokens
    assert taken == text
    assert not device.splits, "no answer says where a wait went"
    device.answer(base=4 + len(text), bonus=33)
    assert device.take(device.send()).tokens == [33]


def test_after_a_loss_what_still_stands_is_sent_again_under_new_numbers() -> None:
    """The second chunk lies behind a wrong token; the first request hears of a token that no round has taken yet."""
    device = Device(requests=2)
    pending = device.send(11, 12, 13, 14)
    device.answer(1, bonus=99)
    device.take(pending)
    pending = device.send(21, 22)
    device.answer(request=1, bonus=77)
    device.connection.answers.append(LOST)
    device.answer(4, base=5, path=[1], bonus=50)
    verdict = device.take(pending)
    assert device.connection.reconnections == 1
    assert device.sent() == [(1, 4, [11, 12]), (2, 6, [13, 14]), (3, 5, [21, 22]), (4, 5, [21, 22])]
    assert verdict.tokens == [21, 50]
    assert (verdict.sent_bytes, verdict.stale_bytes) == (device.bytes(3, 4), device.bytes(2))
    opened = device.connection.frames("open")[2:]
    assert [(frame.session, [*frame.output]) for frame in opened] == [
        (device.names[0], [1, 99]),
        (device.names[1], [1, 77]),
    ]


def test_a_chunk_that_is_known_to_be_committed_is_not_sent_again() -> None:
    device = Device()
    pending = device.send(11, 12, 13, 14)
    device.answer(base=4, status=Status.REBASE, suffix=[11, 12])
    assert device.take(pending).tokens == [11, 12]
    pending = device.send(13, 14)
    device.connection.answers.append(LOST)
    device.answer(3, base=6, path=[1, 2], bonus=15)
    verdict = device.take(pending)
    assert device.sent()[2:] == [(3, 6, [13, 14])]
    assert verdict.tokens == [13, 14, 15]
    assert (verdict.sent_bytes, verdict.stale_bytes) == (device.bytes(3), device.bytes(1))


def test_a_session_that_is_refused_for_the_time_being_is_opened_again() -> None:
    """As often as the server refuses it between two verdicts; what it says of chunks that were sent again is late."""
    device = Device()
    pending = device.send(11, 12)
    for number in range(MAX_TRIES):
        device.refuse(number + 1, Status.OVERLOADED)
    device.refuse(1, Status.FAILED)
    device.answer(MAX_TRIES + 1, path=[1], bonus=99)
    assert device.take(pending).tokens == [11, 99]
    assert device.sent() == [(number + 1, 4, [11, 12]) for number in range(MAX_TRIES + 1)]
    assert {frame.session for frame in device.connection.frames("open")} == {*device.names}
    pending = device.send()
    for _ in range(MAX_TRIES):
        device.refuse(0, Status.OVERLOADED)
    device.answer(base=6, bonus=5)
    assert device.take(pending).tokens == [5]


def test_a_device_waits_as_long_as_a_refusal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(
        "specbench_kit.live.free_running.Event", lambda: SimpleNamespace(wait=waits_s.append)
    )
    device = Device()
    refused = {"session": device.names[0], "status": Status.IN_FLIGHT, "retry_ms": 250}
    device.connection.answers.append((0.0, Down(refused=refused)))
    pending = device.send()
    device.answer(bonus=7)
    assert device.take(pending).tokens == [7]
    assert waits_s == [0.25]


@pytest.mark.parametrize(
    ("status", "times"), [(Status.OVERLOADED, MAX_TRIES + 1), (Status.CONTEXT_FULL, 1)]
)
def test_a_session_that_is_refused_for_good_ends_the_run(status: Status, times: int) -> None:
    device = Device()
    pending = device.send(11, 12)
    for _ in range(times):
        device.refuse(0, status)
    with pytest.raises(SkitError, match=f"^the server refused a draft: {status.name}: why$"):
        pending()
    assert len(device.sent()) == times


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ({"base": 5, "bonus": 7}, "the server left out a verdict"),
        (
            {"number": 1, "path": [2], "bonus": 7},
            "the server verified tokens that were not sent, or rolled back",
        ),
        (
            {"number": 1, "path": [1, 2, 3], "bonus": 7},
            "the server verified tokens that were not sent, or rolled back",
        ),
        (
            {"path": [1], "bonus": 7},
            "the server verified tokens that were not sent, or rolled back",
        ),
    ],
)
def test_a_server_that_verifies_what_was_not_sent_ends_the_run(
    verdict: dict[str, Any], reason: str
) -> None:
    device = Device()
    pending = device.send(11, 12)
    device.answer(**verdict)
    with pytest.raises(SkitError, match=reason):
        pending()


def test_who_looks_for_an_answer_takes_what_is_there() -> None:
    """A verdict of another request is noted on the way; a connection that is lost is met again by whoever waits."""
    device = Device(requests=2)
    pending = device.send(11, 12)
    first, second = device.drafts
    assert device.verifier.awaits_answer(first)
    device.answer(request=1, bonus=77)
    assert device.verifier.awaits_answer(first)
    assert not device.verifier.awaits_answer(second)
    device.answer(base=4, status=Status.REBASE, suffix=[60, 61])
    assert not device.verifier.awaits_answer(first)
    assert device.take(pending).tokens == [60]
    device.send()
    assert not device.verifier.awaits_answer(first), "the second token of the suffix is here"
    lost = Device()
    lost.connection.answers.append(LOST)
    assert not lost.verifier.awaits_answer(lost.drafts[0])


def test_answers_to_a_finished_request_are_ignored() -> None:
    device = Device(requests=2)
    device.verifier.release(device.drafts[1].session)
    assert [frame.session for frame in device.connection.frames("close")] == [device.names[1]]
    pending = device.send(11, 12)
    device.answer(request=1, base=9, bonus=77)
    device.connection.answers.append(
        (0.0, Down(refused={"session": device.names[1], "status": Status.FAILED}))
    )
    device.answer(1, bonus=7)
    assert device.take(pending).tokens == [7]


class Noting:
    """A drafter that notes what it is asked, and answers with that."""

    clock = "the clock"
    drafts = "the drafts"

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (name, *arguments)


def test_a_drafter_that_is_told_of_answers_passes_everything_else_on() -> None:
    """The hidden states that a verdict brought among it."""
    answered = False
    committed: list[tuple[object, ...]] = []
    inner: Any = Noting()
    inner.commit = lambda *arguments: committed.append(arguments)
    drafter: Any = AnswerPollingDrafter(inner, lambda: answered)
    assert (drafter.clock, drafter.drafts) == ("the clock", "the drafts")
    for name in ("begin", "room", "extend", "expand"):
        assert getattr(drafter, name)(7) == (name, 7)
    drafter.commit(1, [2], 3, 4)
    assert committed == [(1, [2], 3, 4)]
    assert drafter.awaits_answer(1)
    assert not drafter.has_reached_server(1, 2)
    answered = True
    assert not drafter.awaits_answer(1)


def test_what_is_drafted_ahead_is_offered_as_it_grows() -> None:
    device = Device()
    pending = device.send(11)
    (draft,) = device.drafts

    def extend(drafts: list[Draft]) -> list[Draft]:
        device.grow(12)
        return drafts

    inner: Any = SimpleNamespace(extend=extend)
    drafter = FreeRunningDrafter(inner, device.verifier)
    assert drafter.awaits_answer(draft)
    assert device.sent() == []
    assert drafter.extend([draft]) == [draft]
    assert device.sent() == [(1, 4, [11, 12])]
    device.answer(1, bonus=9)
    assert not drafter.awaits_answer(draft)
    assert device.take(pending).tokens == [9]
