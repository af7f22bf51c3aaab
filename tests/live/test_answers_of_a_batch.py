"""The device's end of several requests at a server: whose answer is whose, what is asked again, and what came late."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from known_drafts import SURE, Known, KnownDrafter
from tiny_models import GREEDY, make_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.connection import ConnectionLostError
from specbench_kit.live.engines.base import EngineAdapter, GenerationRequest, ScoringRequest
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.servers import EngineStream, EngineVerifier
from specbench_kit.live.states import to_bytes
from specbench_kit.live.streaming import StreamedRound
from specbench_kit.live.verifier import WireStream, WireVerifier
from specbench_kit.live.wire import Down, Status, Up

LOST = ConnectionLostError("away")


@dataclass
class Scripted:
    """A connection whose answers a test chooses, each with its time of arrival; an error loses it."""

    answers: deque[tuple[float, Down] | ConnectionLostError] = field(default_factory=deque)
    sent: list[Up] = field(default_factory=list)
    welcome: messages.Welcome = field(default_factory=lambda: messages.Welcome(generates=True))
    answer_arrived: bool = False
    reconnections: int = 0

    def send(self, frame: Up) -> None:
        self.sent.append(frame)

    def receive(self) -> tuple[float, Down]:
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

    def answer(self, request: int, arrived_s: float = 0.0, number: int = 1, **verdict: object) -> None:
        down = Down(verdict={"session": self.names[request], "round": number, **verdict})
        self.connection.answers.append((arrived_s, down))


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


def test_the_round_that_came_last_says_where_the_wait_went() -> None:
    device = Device()
    pending = device.verifier.send(device.drafts, [[1, 2]] * 3)
    for request, arrived_s in ((0, 1e9 + 1), (1, 1e9 + 3), (2, 1e9 + 2)):
        device.answer(request, arrived_s, queue_us=1000 * (request + 1), verify_us=5000 * (request + 1))
    pending()
    ((phase, verify_s, _, parts),) = device.splits
    assert (phase, verify_s, parts[1]) == ("verify", 0.010, ("queue", 0.002, 1))


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
    assert len(device.connection.frames("draft")) == 3, "the request whose answer is here sent nothing again"


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
        device.answer(0, number=number, path=path, bonus=9, states=to_bytes(torch.full((tokens, 2), float(number))))
        (verdict,) = pending()
        assert verdict.states is not None
        assert verdict.states.tolist() == [[number, number]] * tokens
        draft.session.tokens += verdict.tokens
    assert [frame.states for frame in device.connection.frames("draft")] == [0, 5, 6]


class Streaming:
    """A stream of two requests that a server decodes by itself."""

    def __init__(self) -> None:
        self.connection = Scripted()
        self.stream = WireStream(self.connection, GREEDY, 0)  # type: ignore[arg-type]
        self.sessions: list[Session] = [draft.session for draft in KnownDrafter([[SURE]] * 2, context=4).drafts]
        for session in self.sessions:
            self.stream.begin(session)
        self.names = [frame.session for frame in self.connection.frames("open")]

    def answer(self, request: int, number: int = 1, base: int = 4, **frame: object) -> None:
        down = Down(generated={"session": self.names[request], "round": number, "base": base, **frame})
        self.connection.answers.append((1.0, down))

    def receive(self) -> list[StreamedRound]:
        return list(self.stream.receive())


def test_a_streamed_request_is_charged_its_share_of_the_batch() -> None:
    device = Streaming()
    device.answer(1, tokens=[5], verify_us=9000, queue_us=2000, draft_us=1000, batch_size=3)
    (streamed,) = device.receive()
    assert streamed.request_id == "1"
    assert (streamed.verify_s, streamed.queue_s, streamed.draft_s) == (pytest.approx(0.003), 0.002, 0.001)


@pytest.mark.parametrize("late", [{"number": 2}, {"base": 3}, {"base": 5}, {"tokens": []}])
def test_tokens_that_belong_elsewhere_are_passed_over(late: dict[str, Any]) -> None:
    """Tokens of another attempt, tokens that are here already, tokens after a gap, and no tokens are passed over."""
    device = Streaming()
    device.answer(0, **{"tokens": [9], **late})
    device.answer(0, tokens=[5])
    assert [list(streamed.tokens) for streamed in device.receive()] == [[5]]


def test_after_a_loss_every_response_is_asked_for_from_its_last_token_on() -> None:
    device = Streaming()
    device.answer(1, tokens=[5, 6])
    (streamed,) = device.receive()
    device.sessions[1].tokens += streamed.tokens
    device.connection.answers.append(LOST)
    device.answer(1, number=2, base=6, status=Status.REBASE, tokens=[7, 8])
    assert [(answer.request_id, list(answer.tokens)) for answer in device.receive()] == [("1", [7]), ("1", [8])]
    requests = [(frame.session, frame.round, frame.base) for frame in device.connection.frames("generate")]
    first, second = device.names
    assert requests == [(first, 1, 4), (second, 1, 4), (first, 2, 4), (second, 2, 6)]


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
    assert [(verdict.path, verdict.bonus, verdict.computed) for verdict in verdicts] == [([1], 9, 3), ([1, 2], 5, 3)]


def test_the_answer_that_came_last_says_how_long_the_link_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts how often it is read: sending, the first answer and its end are read before the second."""
    monkeypatch.setattr("specbench_kit.live.servers.monotonic_s", count(1).__next__)
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
    session = type(draft.session)(request, draft.session.random, frozenset(), 0.0, draft.session.record)
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
