"""The device's end of several requests at a server: whose answer is whose, what is asked again, and what came late."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from known_drafts import SURE, Known, KnownDrafter
from tiny_models import GREEDY, make_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.connection import ConnectionLostError
from specbench_kit.live.engine_verifier import EngineStream, EngineVerifier
from specbench_kit.live.engines.base import EngineAdapter, GenerationRequest, ScoringRequest
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.states import to_bytes
from specbench_kit.live.streaming import StreamedLoop, StreamedRound
from specbench_kit.live.wire import Down, Status, Up
from specbench_kit.live.wire_verifier import MAX_TRIES, WireStream, WireVerifier, open_frame

LOST = ConnectionLostError("away")


@dataclass
class Scripted:
    """A connection whose answers a test chooses, each with its time of arrival; an error loses it."""

    answers: deque[tuple[float, Down] | ConnectionLostError] = field(default_factory=deque)
    sent: list[Up] = field(default_factory=list)
    welcome: messages.Welcome = field(default_factory=lambda: messages.Welcome(generates=True))
    answer_arrived: bool = False
    address: str = "host:1"
    reconnections: int = 0

    def send(self, frame: Up) -> None:
        self.sent.append(frame)

    def receive(self, timeout_s: float = 0.0) -> tuple[float, Down]:
        answer = self.answers.popleft()
        if isinstance(answer, ConnectionLostError):
            raise answer
        return answer

    def reconnect(self) -> None:
        self.reconnections += 1

    def frames(self, kind: str) -> list[Any]:
        return [getattr(frame, kind) for frame in self.sent if frame.WhichOneof("kind") == kind]


class Device:
    """A verifier of three requests with chains of two tokens, over a scripted connection."""

    def __init__(self, layers: Sequence[int] = ()) -> None:
        self.connection, self.splits = Scripted(), []
        clock = SimpleNamespace(split=lambda *parts: self.splits.append(parts))
        self.verifier = WireVerifier(self.connection, GREEDY, 0, clock, layers)  # type: ignore[arg-type]
        self.drafts: list[Draft] = KnownDrafter([[SURE]] * 3, context=4).drafts
        for draft in self.drafts:
            self.verifier.admit(draft.session)
            for token in (7, 8):
                draft.tree.add(token, draft.tree.last, Known(SURE, sampled=False), 0)
        self.names = [frame.session for frame in self.connection.frames("open")]

    def answer(
        self, request: int, arrived_s: float = 0.0, number: int = 1, **verdict: object
    ) -> None:
        down = Down(verdict={"session": self.names[request], "round": number, **verdict})
        self.connection.answers.append((arrived_s, down))

    def refuse(self, request: int, status: Status, times: int = 1) -> None:
        refused = Down(refused={"session": self.names[request], "status": status, "reason": "why"})
        self.connection.answers.extend([(0.0, refused)] * times)


def test_answers_in_another_order_are_those_of_their_own_drafts() -> None:
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    device.answer(2, path=[1, 2], bonus=12, computed=6, padded=[3, 2])
    device.answer(0, path=[], bonus=10, computed=4, padded=[3, 0])
    device.answer(1, path=[1], bonus=11, computed=5, padded=[3, 1])
    verdicts = pending()
    assert [verdict.draft for verdict in verdicts] == device.drafts
    assert [(v.path, v.bonus, v.computed, list(v.padded)) for v in verdicts] == [
        ([], 10, 4, [3, 0]),
        ([1], 11, 5, [3, 1]),
        ([1, 2], 12, 6, [3, 2]),
    ]


def test_a_part_of_a_tree_is_sent_and_answered_by_positions() -> None:
    """Nodes 1 to 5 have the parents 0, 0, 1, 2 and 2; sent are 2, 4 and 5, and accepted 2 and 5."""
    device = Device()
    draft = device.drafts[0]
    draft.tree = TokenTree(draft.session.tokens[-1])
    for token, parent in ((21, 0), (22, 0), (23, 1), (24, 2), (25, 2)):
        draft.tree.add(token, parent, Known(SURE, sampled=False), 0)
    pending = device.verifier.send([draft], [[2, 4, 5]])
    (frame,) = device.connection.frames("draft")
    assert (list(frame.tokens), list(frame.parents), frame.base) == ([22, 24, 25], [0, 1, 1], 4)
    device.answer(0, path=[1, 3], bonus=9)
    (verdict,) = pending()
    assert (verdict.path, verdict.tokens) == ([2, 5], [22, 25, 9])


def test_after_a_loss_all_rounds_that_still_wait_are_sent_again() -> None:
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    device.answer(1, bonus=11)
    device.connection.answers.append(LOST)
    device.answer(0, bonus=10)
    device.answer(2, bonus=12)
    assert [verdict.bonus for verdict in pending()] == [10, 11, 12]
    sent = [frame.session for frame in device.connection.frames("draft")]
    assert sent == [*device.names, device.names[0], device.names[2]]
    assert device.connection.reconnections == 1


def test_an_answer_to_an_earlier_round_is_ignored() -> None:
    """A round that was sent twice may be answered twice; the second answer comes in the next round."""
    device = Device()
    first = device.verifier.send(device.drafts[:1], [[1, 2]])
    device.answer(0, bonus=10)
    first()
    second = device.verifier.send(device.drafts[:1], [[1]])
    device.answer(0, bonus=99)
    device.answer(0, number=2, bonus=20)
    assert [verdict.bonus for verdict in second()] == [20]


def test_a_round_that_is_refused_for_the_time_being_is_sent_again() -> None:
    """As often as the server refuses it, and no other one with it."""
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    device.answer(0, bonus=10)
    device.refuse(0, Status.FAILED)  # came late: this round has its answer
    device.refuse(1, Status.OVERLOADED, MAX_TRIES)
    device.answer(1, bonus=11)
    device.answer(2, bonus=12)
    assert [verdict.bonus for verdict in pending()] == [10, 11, 12]
    sent = device.connection.frames("draft")
    assert [frame.session for frame in sent] == [*device.names, *[device.names[1]] * MAX_TRIES]
    assert all(frame == sent[1] for frame in sent[3:])
    assert len(device.connection.frames("open")) == 3


def test_a_device_waits_as_long_as_a_refusal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(
        "specbench_kit.live.wire_verifier.Event", lambda: SimpleNamespace(wait=waits_s.append)
    )
    device, streaming = Device(), Streaming()
    for number, (sender, name) in enumerate(
        ((device, device.names[0]), (streaming, streaming.names[0])), 1
    ):
        refused = {"session": name, "status": Status.OVERLOADED, "retry_ms": 250 * number}
        sender.connection.answers.append((0.0, Down(refused=refused)))
    pending = device.verifier.send(device.drafts[:1], [[1, 2]])
    device.answer(0, bonus=10)
    streaming.answer(0, number=2, tokens=[5])
    assert [verdict.bonus for verdict in pending()] == [10]
    assert [list(streamed.tokens) for streamed in streaming.receive()] == [[5]]
    assert waits_s == [0.25, 0.5]


@pytest.mark.parametrize(
    ("status", "times"), [(Status.OVERLOADED, MAX_TRIES + 1), (Status.BROKEN_TREE, 1)]
)
def test_a_round_that_is_refused_for_good_ends_the_run(status: Status, times: int) -> None:
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    device.refuse(1, status, times)
    with pytest.raises(SkitError, match=f"^the server refused a draft: {status.name}: why$"):
        pending()
    assert len(device.connection.frames("draft")) == 3 + times - 1


def test_a_forgotten_session_is_opened_again_with_its_output() -> None:
    device = Device()
    draft = device.drafts[1]
    draft.session.tokens += [21, 22]
    pending = device.verifier.send([draft], [[1, 2]])
    device.refuse(1, Status.UNKNOWN_SESSION)
    device.answer(1, bonus=11)
    pending()
    kinds = [frame.WhichOneof("kind") for frame in device.connection.sent]
    assert kinds == ["open"] * 3 + ["draft", "open", "draft"]
    opened = device.connection.frames("open")[-1]
    assert (opened.session, [*opened.prompt], [*opened.output]) == (
        device.names[1],
        [1] * 3,
        [1, 21, 22],
    )


@pytest.mark.parametrize("path", [[0], [1, 3]])
def test_a_server_that_accepts_what_was_not_sent_ends_the_run(path: list[int]) -> None:
    device = Device()
    pending = device.verifier.send(device.drafts[:1], [[1, 2]])
    device.answer(0, path=path)
    with pytest.raises(SkitError, match="tokens that were not sent"):
        pending()


def test_a_finished_request_closes_its_session() -> None:
    device = Device()
    device.verifier.release(device.drafts[1].session)
    assert [frame.session for frame in device.connection.frames("close")] == [device.names[1]]


@pytest.mark.parametrize(
    ("options", "silence_ms", "max_tokens", "ends"),
    [
        ({}, 0, 0, []),
        ({"silence_s": 0.25}, 250, 1000, [4, 9]),
        ({"silence_s": 0.25, "layers": (1,)}, 0, 0, []),
        ({"ahead": 3}, 0, 1000, [4, 9]),
        ({"ahead": 3, "layers": (1,)}, 0, 1000, [4, 9]),
    ],
)
def test_a_server_that_may_go_on_by_itself_is_told_where_a_response_ends(
    options: dict[str, Any], silence_ms: int, max_tokens: int, ends: list[int]
) -> None:
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    draft.session.eos_ids = frozenset({9, 4})
    frame = open_frame(draft.session, "s", GREEDY, 3, heard=[5, 6], **options)
    assert (frame.silence_ms, frame.max_tokens, [*frame.ends]) == (silence_ms, max_tokens, ends)
    assert (frame.ahead, [*frame.layers]) == (options.get("ahead", 0), [*options.get("layers", ())])
    assert ([*frame.prompt], [*frame.output], frame.sampling.seed) == ([1] * 3, [1, 5, 6], 3)


def test_the_round_that_came_last_says_where_the_wait_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are sent at 100 s, the wait lasts from 101 to 104, and the answers came at 101, 103 and 102."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("specbench_kit.live.wire_verifier.monotonic_s", lambda: now.s)
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    for request, arrived_s in ((0, 101.0), (1, 103.0), (2, 102.0)):
        times = {"queue_us": 250_000 * (request + 1), "verify_us": 500_000 * (request + 1)}
        device.answer(request, arrived_s, **times)
    now.s, receive = 101.0, device.connection.receive

    def late(timeout_s: float = 0.0) -> tuple[float, Down]:
        now.s = 104.0
        return receive(timeout_s)

    device.connection.receive = late  # type: ignore[method-assign]
    pending()
    assert device.splits == [("verify", 1.0, 3.0, [("link", 1.5, 2), ("queue", 0.5, 1)])]


def test_an_answer_is_known_before_only_if_it_is_for_all() -> None:
    """The server is two tokens ahead of one request: its next round needs no answer, that of another one does."""
    device = Device()
    pending = device.verifier.send(device.drafts[:1], [[1, 2]])
    device.answer(0, status=Status.REBASE, suffix=[5, 6])
    assert [verdict.tokens for verdict in pending()] == [[5]]
    device.verifier.send(device.drafts[1:2], [[1, 2]])
    assert not device.verifier.answer_arrived()
    device.verifier.send(device.drafts[:2], [[1], [1]])
    assert not device.verifier.answer_arrived()
    assert len(device.connection.frames("draft")) == 3, (
        "the request whose answer is here sent nothing again"
    )


def test_a_round_that_needs_no_answer_has_arrived() -> None:
    device = Device()
    pending = device.verifier.send(device.drafts[:1], [[1, 2]])
    device.answer(0, status=Status.REBASE, suffix=[5, 6])
    pending()
    pending = device.verifier.send(device.drafts[:1], [[1, 2]])
    assert device.verifier.answer_arrived()
    assert [verdict.tokens for verdict in pending()] == [[6]]


def test_the_device_says_how_many_hidden_states_it_has() -> None:
    """The device has the states of 4 prompt tokens and an accepted one, then of the bonus token."""
    device = Device(layers=(1,))
    draft = device.drafts[0]
    for number, (path, tokens) in enumerate((([1], 5), ([], 1), ([1, 2], 3)), 1):
        pending = device.verifier.send([draft], [[1, 2]])
        device.answer(
            0,
            number=number,
            path=path,
            bonus=9,
            states=to_bytes(torch.full((tokens, 2), float(number))),
        )
        (verdict,) = pending()
        assert verdict.states is not None
        assert verdict.states.tolist() == [[number, number]] * tokens
        draft.session.tokens += verdict.tokens
    assert [frame.states for frame in device.connection.frames("draft")] == [0, 5, 6]


class Streaming:
    """A stream of two requests that a server decodes by itself."""

    def __init__(self, method: str = "") -> None:
        self.connection = Scripted()
        self.stream = WireStream(self.connection, GREEDY, 0, method)  # type: ignore[arg-type]
        self.sessions: list[Session] = [
            draft.session for draft in KnownDrafter([[SURE]] * 2, context=4).drafts
        ]
        for session in self.sessions:
            self.stream.begin(session)
        self.names = [frame.session for frame in self.connection.frames("open")]

    def answer(self, request: int, number: int = 1, base: int = 4, **frame: object) -> None:
        down = Down(
            generated={"session": self.names[request], "round": number, "base": base, **frame}
        )
        self.connection.answers.append((1.0, down))

    def refuse(self, request: int, number: int, status: Status) -> None:
        refused = {
            "session": self.names[request],
            "round": number,
            "status": status,
            "reason": "why",
        }
        self.connection.answers.append((1.0, Down(refused=refused)))

    def receive(self) -> list[StreamedRound]:
        return list(self.stream.receive())


def test_a_streamed_request_is_charged_its_share_of_the_batch() -> None:
    device = Streaming()
    device.answer(1, tokens=[5], verify_us=9000, queue_us=2000, draft_us=1000, batch_size=3)
    (streamed,) = device.receive()
    assert streamed.request_id == "1"
    assert (streamed.verify_s, streamed.queue_s, streamed.draft_s) == (
        pytest.approx(0.003),
        0.002,
        0.001,
    )


@pytest.mark.parametrize("late", [{"number": 2}, {"base": 3}, {"base": 5}, {"tokens": []}])
def test_tokens_that_belong_elsewhere_are_passed_over(late: dict[str, Any]) -> None:
    """Tokens of another attempt, tokens that are here already, tokens after a gap, and no tokens are passed over."""
    device = Streaming()
    device.answer(0, **{"tokens": [9], **late})
    device.answer(0, tokens=[5])
    assert [list(streamed.tokens) for streamed in device.receive()] == [[5]]


def test_each_number_of_a_streamed_round_is_read() -> None:
    device = Streaming()
    device.answer(
        0, tokens=[5, 6, 7], drafted=4, submitted=3, accepted=2, computed=6, padded=[2, 1]
    )
    (streamed,) = device.receive()
    assert (streamed.drafted, streamed.submitted, streamed.accepted) == (4, 3, 2)
    assert (streamed.computed, [*streamed.padded], streamed.arrived_s) == (6, [2, 1], 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_a_response_that_is_refused_for_the_time_being_is_asked_for_again(number: int) -> None:
    """The request has one of its thousand tokens, and asks for the rest by a method of the server's."""
    device = Streaming(method="suffix")
    device.refuse(1, number, Status.OVERLOADED)
    device.refuse(1, 1, Status.FAILED)  # an attempt that was given up
    device.answer(1, number=2, tokens=[5])
    assert [list(streamed.tokens) for streamed in device.receive()] == [[5]]
    asked = device.connection.frames("generate")
    assert [(frame.session, frame.round) for frame in asked] == [
        (device.names[0], 1),
        (device.names[1], 1),
        (device.names[1], 2),
    ]
    assert {(frame.base, frame.max_tokens, frame.method) for frame in asked} == {(4, 999, "suffix")}
    assert len(device.connection.frames("open")) == 2


@pytest.mark.parametrize(
    ("status", "times"), [(Status.OVERLOADED, MAX_TRIES + 1), (Status.UNKNOWN_METHOD, 1)]
)
def test_a_response_that_is_refused_for_good_ends_the_run(status: Status, times: int) -> None:
    device = Streaming()
    for number in range(times):
        device.refuse(1, number + 1, status)
    with pytest.raises(SkitError, match=f"^the server refused to decode: {status.name}: why$"):
        device.receive()
    assert len(device.connection.frames("generate")) == 2 + times - 1


def test_a_forgotten_response_is_opened_and_asked_for_again() -> None:
    device = Streaming()
    device.sessions[1].tokens += [5]
    device.refuse(1, 1, Status.UNKNOWN_SESSION)
    device.answer(1, number=2, base=5, tokens=[6])
    assert [list(streamed.tokens) for streamed in device.receive()] == [[6]]
    opened, asked = device.connection.frames("open"), device.connection.frames("generate")
    assert ([*opened[-1].output], opened[-1].session) == ([1, 5], device.names[1])
    assert (asked[-1].session, asked[-1].base, len(opened), len(asked)) == (
        device.names[1],
        5,
        3,
        3,
    )


def test_tokens_of_a_finished_response_are_passed_over() -> None:
    device = Streaming()
    device.stream.end(device.sessions[1])
    assert [frame.session for frame in device.connection.frames("close")] == [device.names[1]]
    device.answer(1, tokens=[9])
    device.refuse(1, 1, Status.FAILED)
    device.answer(0, tokens=[5])
    assert [streamed.request_id for streamed in device.receive()] == ["0"]


def test_after_a_loss_every_response_is_asked_for_from_its_last_token_on() -> None:
    device = Streaming()
    device.answer(1, tokens=[5, 6])
    (streamed,) = device.receive()
    device.sessions[1].tokens += streamed.tokens
    device.connection.answers.append(LOST)
    device.answer(1, number=2, base=6, status=Status.REBASE, tokens=[7, 8])
    assert [(answer.request_id, list(answer.tokens)) for answer in device.receive()] == [
        ("1", [7]),
        ("1", [8]),
    ]
    requests = [
        (frame.session, frame.round, frame.base) for frame in device.connection.frames("generate")
    ]
    first, second = device.names
    assert requests == [(first, 1, 4), (second, 1, 4), (first, 2, 4), (second, 2, 6)]


@dataclass
class Spoken:
    """A stream that says, one after the other, what a test chooses."""

    says: deque[list[StreamedRound]]
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    """Called while tokens are waited for."""

    def begin(self, session: Session) -> None:
        self.asked.append(session.request.id)

    def receive(self) -> Sequence[StreamedRound]:
        self.meanwhile()
        return self.says.popleft()

    def end(self, session: Session) -> None:
        self.ended.append(session.request.id)


def test_a_streamed_round_lasts_from_the_tokens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reads tokens a second after they have come; its clock and the machine's are 100 s apart.

    The server says of its second round that 0.5 s were queue, 0.25 s drafting and 1 s verification; the remaining
    0.25 s were the link's. Of the first it says nothing, and the third comes to a request that has ended.
    """
    clock = ModelledClock(10.0)
    says = [
        [StreamedRound("000", [5], 113.0)],
        [
            StreamedRound(
                "000",
                [6, 7],
                115.0,
                4,
                3,
                1,
                5,
                queue_s=0.5,
                draft_s=0.25,
                verify_s=1.0,
                padded=[2, 1],
            ),
            StreamedRound("001", [9], 115.0),
            StreamedRound("000", [8], 115.0, verify_s=0.0),
            StreamedRound("000", [9], 115.0),
        ],
    ]
    stream = Spoken(deque(says))
    loop = StreamedLoop(stream, clock, DecodingSetup(eos_ids=frozenset({8})))  # type: ignore[arg-type]
    loop.submit(make_requests([[1, 2]], 9)[0])
    monkeypatch.setattr(
        "specbench_kit.live.streaming.monotonic_s", lambda: 100 + clock.now_s() + 1.0
    )
    assert loop.runs_on
    seen: list[Any] = []
    loop.on_round = seen.extend
    records = []
    for now_s in (13.0, 15.0):
        stream.meanwhile = partial(clock.wait_until, now_s)
        records += loop.step()
    (record,) = records
    assert (stream.asked, stream.ended, record.output_ids, record.finish_reason) == (
        ["000"],
        ["000"],
        [5, 6, 7, 8],
        "eos",
    )
    first, second, third = record.rounds
    assert (first.end_s, first.verify_s, first.link_s, first.committed) == (2.0, 2.0, 0.0, 1)
    assert (second.end_s, second.verify_s, second.link_s, second.queue_s, second.draft_s) == (
        4.0,
        1.0,
        0.25,
        0.5,
        0.25,
    )
    assert (second.drafted, second.submitted, second.accepted, second.committed) == (4, 3, 1, 2)
    assert (second.deepest, second.padded) == (3, [2, 1])
    assert (third.end_s, third.verify_s, third.link_s) == (4.0, 0.0, 0.0)
    details = [streamed.detail() for streamed in seen]
    assert [
        (shown.tokens, shown.parents, shown.submitted, shown.path, shown.bonus) for shown in details
    ] == [
        ([2], [-1], [], [], 5),
        ([5, 6], [-1, 0], [1], [1], 7),
        ([7], [-1], [], [], 8),
    ]
    assert [(shown.committed, shown.inherited, shown.proactive) for shown in details] == [
        (1, 0, 0),
        (2, 0, 0),
        (1, 0, 0),
    ]
    assert details[1].probabilities == [1.0, 1.0]


class ChosenEngine(EngineAdapter):
    """An engine whose target says what a test chooses, by request."""

    def __init__(self, says: dict[int, list[int]] | None = None) -> None:
        super().__init__("http://127.0.0.1:1")
        self.says, self.asked, self.hold = says or {}, [], Event()
        self.generations: list[GenerationRequest] = []
        self.chunks: deque[list[list[int]]] = deque()

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        self.asked.append(request)
        if request.text[0] == 2:
            assert self.hold.wait(60)
        return self.says[request.text[0]]

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        self.generations.append(request)
        yield from self.chunks.popleft()


def chains(*firsts: int) -> list[Draft]:
    """Return drafts of two tokens each, of requests whose texts begin with these tokens."""
    drafts = KnownDrafter([[SURE]] * len(firsts), context=4).drafts
    for draft, first in zip(drafts, firsts, strict=True):
        draft.session.tokens[0] = first
        for token in (7, 8):
            draft.tree.add(token, draft.tree.last, Known(SURE, sampled=False), 0)
    return drafts


def test_an_engine_has_answered_once_it_has_answered_all() -> None:
    """The second request is held up until the first has been answered."""
    engine = ChosenEngine({1: [7, 9, 0], 2: [7, 8, 5]})
    verifier, drafts = EngineVerifier(engine, GREEDY, 0), chains(1, 2)
    pending = verifier.send(drafts, [[1, 2]] * 2)
    assert verifier._answers[0].result(60).tokens == [7, 9, 0]
    assert not verifier.answer_arrived()
    engine.hold.set()
    verdicts = pending()
    assert verifier.answer_arrived()
    assert [(verdict.path, verdict.bonus, verdict.computed) for verdict in verdicts] == [
        ([1], 9, 3),
        ([1, 2], 5, 3),
    ]


def test_the_answer_that_came_last_says_how_long_the_link_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock counts how often it is read: sending, the first answer and its end are read before the second."""
    monkeypatch.setattr("specbench_kit.live.engine_verifier.monotonic_s", count(1).__next__)
    engine, splits = ChosenEngine({1: [7, 8, 5], 2: [7, 8, 5]}), []
    engine.link = SimpleNamespace(take_server_s=lambda: 0.0)  # type: ignore[assignment]
    clock = SimpleNamespace(split=lambda *parts: splits.append(parts))
    verifier = EngineVerifier(engine, GREEDY, 0, clock)  # type: ignore[arg-type]
    pending = verifier.send(chains(1, 2), [[1, 2]] * 2)
    verifier._answers[0].result(60)
    engine.hold.set()
    pending()
    arrived = [answer.result().arrived_s for answer in verifier._answers]
    ((phase, _, _, ((part, link_s, _),)),) = splits
    assert (phase, part, link_s) == ("verify", "link", arrived[1] - 1)
    assert arrived[1] > arrived[0]


def test_the_whole_wait_for_an_engine_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at 100 s, waited for from 101 s on, when the answer is there, to 104 s; the engine says it took 0.25 s."""
    now, splits = SimpleNamespace(s=0.0), []
    reads_s = iter([100.0, 104.0])
    monkeypatch.setattr("specbench_kit.live.engine_verifier.monotonic_s", lambda: now.s)

    def take_server_s() -> float:
        now.s = next(reads_s)
        return 0.25

    engine = ChosenEngine({2: [7, 8, 5]})
    engine.link = SimpleNamespace(take_server_s=take_server_s)  # type: ignore[assignment]
    clock = SimpleNamespace(split=lambda *parts: splits.append(parts))
    verifier = EngineVerifier(engine, GREEDY, 0, clock)  # type: ignore[arg-type]
    pending = verifier.send(chains(2), [[1, 2]])
    now.s = 101.0
    engine.hold.set()
    verifier._answers[0].result(60)
    pending()
    assert splits == [("verify", 0.25, 3.0, [("link", 0.75, 2)])]


def test_seeds_are_signed_numbers_of_32_bits_and_each_request_has_its_own() -> None:
    engine = ChosenEngine({1: [7, 8, 5]})
    EngineVerifier(engine, GREEDY, 0).send(chains(1), [[1, 2]])()
    stream, drafts = EngineStream(engine, GREEDY, 0), KnownDrafter([[SURE]] * 4, context=4).drafts
    for draft in drafts:
        engine.chunks.append([[5] * 1000])
        stream.begin(draft.session)
        received(stream, 1000)
    generated = [generation.seed for generation in engine.generations]
    assert len({*generated}) == 4
    assert all(0 <= seed < 2**31 for seed in (*generated, *engine.asked[0].seeds))


def test_requests_have_seeds_of_their_own_by_position() -> None:
    engine = ChosenEngine({1: [7, 8, 5], 3: [7, 8, 5]})
    verifier, drafts = EngineVerifier(engine, GREEDY, 0), chains(1, 3)
    verifier.send(drafts, [[1, 2]] * 2)()
    first, second = (next(r.seeds for r in engine.asked if r.text[0] == token) for token in (1, 3))
    assert len({*first, *second}) == 6
    drafts[0].session.tokens += [7]
    verifier.send(drafts[:1], [[1, 2]])()
    assert engine.asked[-1].seeds[:2] == first[1:]


def received(stream: EngineStream, least: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < least:
        tokens += [token for streamed in stream.receive() for token in streamed.tokens]
    return tokens


def test_an_engine_that_stops_early_goes_on_from_what_it_said() -> None:
    engine = ChosenEngine()
    engine.chunks.extend([[[5, 6]], [[7], [8, 9]]])
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    request = make_requests([[1, 2]], 5)[0]
    session = type(draft.session)(
        request, draft.session.random, frozenset(), 0.0, draft.session.record
    )
    stream = EngineStream(engine, GREEDY, 0)
    stream.begin(session)
    assert received(stream, 5) == [5, 6, 7, 8, 9]
    stream.end(session)
    assert [(generation.text, generation.max_tokens) for generation in engine.generations] == [
        ([1, 2], 5),
        ([1, 2, 5, 6], 3),
    ]


def test_an_engine_that_says_nothing_ends_the_run() -> None:
    engine = ChosenEngine()
    engine.chunks.extend([[[5]], []])
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    stream = EngineStream(engine, GREEDY, 0)
    stream.begin(draft.session)
    assert received(stream, 1) == [5]
    with pytest.raises(SkitError, match="ended the response to 0 without a token"):
        stream.receive()
