"""Drafts that are sent before the verdicts on earlier ones: verified in order, or dropped, and nothing is lost."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest
import torch
from live_server import (
    CALLER,
    CAPACITY,
    DRAFT,
    TARGET,
    VOCABULARY,
    decode_here,
    decode_remotely,
    make_server,
    serving,
)
from nightly import nightly_except
from report_builders import make_record
from tiny_models import (
    AUTOREGRESSIVE,
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    plain_logits,
    random_prompts,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.look_up import LookUpDistribution
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.connection import Connection
from specbench_kit.live.free_running import (
    FreeRunningVerifier,
    _OpenSession,
    _SentChunk,
    require_ahead,
)
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.drafts import ReceivedDistributions
from specbench_kit.live.server.free_running import fitting_tree
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Status, Up, text_hash
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.method_metrics import MethodMetrics
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.statistics import units_of
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

PATIENCE_S = 60
METHOD = parse_method("decoupled:k=3,in_flight=4")
REQUESTS = make_requests(random_prompts([5, 9, 17], VOCABULARY), 30)
PLAIN = outputs(decode_here(AUTOREGRESSIVE, REQUESTS))
STRANGER = tiny_llama(7)
"""A model that never drafts what the target says."""
PROMPT = [3, 14, 15, 9, 2, 6]
ANSWER = plain_greedy(TARGET, PROMPT, 24)[0]


def wrong(token: int) -> int:
    return (token + 1) % VOCABULARY


@pytest.fixture(
    params=[DRAFT, TARGET, STRANGER], ids=["now and then right", "always right", "always wrong"]
)
def models(request: pytest.FixtureRequest) -> dict[str, Runner]:
    """The device's draft model."""
    return {"draft": make_runner(request.param, 2, CAPACITY)}


FAR = Link(rtt_s=0.02)


@pytest.mark.parametrize(
    ("link", "batch_size"),
    nightly_except([(None, 2), (FAR, 1)], product([None, FAR], [1, 2])),
)
def test_the_output_is_plain_decodings(
    models: dict[str, Runner], link: Link | None, batch_size: int
) -> None:
    with serving() as (_, address):
        connection = Connection(address, CALLER, link)
        assert (
            outputs(
                decode_remotely(METHOD, connection, REQUESTS, batch_size=batch_size, models=models)
            )
            == PLAIN
        )


@dataclass
class DraftingDevice:
    """A device that sends drafts as it likes, and a server whose verification begins round by round."""

    connection: Connection
    service: VerificationService
    submit: Callable[[PendingRound], None]
    begun: SimpleQueue[PendingRound] = field(default_factory=SimpleQueue)
    name: str = "s"

    def open(self, output: list[int] | None = None, **more: object) -> Any:
        opening = {
            "session": self.name,
            "prompt": PROMPT,
            "output": output or [],
            "sampling": {"request": "s"},
        }
        self.connection.send(Up(open={**opening, "ahead": 4, "max_tokens": 20, **more}))
        return self.answer()

    def draft(
        self,
        number: int,
        base: int,
        tokens: list[int],
        text: list[int] | None = None,
        **more: object,
    ) -> None:
        """Send a draft behind so many tokens of the target's text, or of another one."""
        before = [*PROMPT, *ANSWER][:base] if text is None else text
        self.connection.send(
            Up(
                draft={
                    "session": self.name,
                    "round": number,
                    "base": base,
                    "tokens": tokens,
                    "text_hash": text_hash(before),
                    **more,
                }
            )
        )

    def answer(self) -> Any:
        _, down = self.connection.receive(PATIENCE_S)
        return getattr(down, down.WhichOneof("kind"))

    def verify(self) -> PendingRound:
        """Let the server verify the round that it has begun."""
        pending = self.begun.get(timeout=PATIENCE_S)
        self.submit(pending)
        return pending

    def settle(self) -> None:
        """Wait until the server has read everything that was sent."""
        self.connection.send(Up(ping={"count": 1}))
        assert self.answer() == messages.Pong(count=1)

    def read(self, number: int) -> list[tuple[int, str, int, list[int], int]]:
        """Return round, status, base, path and bonus token of the next answers."""
        verdicts = [self.answer() for _ in range(number)]
        return [
            (
                verdict.round,
                Status(verdict.status).name,
                verdict.base,
                [*verdict.path],
                verdict.bonus,
            )
            for verdict in verdicts
        ]


@pytest.fixture
def device() -> Iterator[DraftingDevice]:
    with controlled() as device:
        yield device


@contextmanager
def controlled(**limits: Any) -> Iterator[DraftingDevice]:
    with serving(limits=ServerLimits(**{"context": CAPACITY, "ahead": 4, **limits})) as (
        service,
        address,
    ):
        runner = service.handler.batch_runner
        device = DraftingDevice(Connection(address, CALLER), service, runner.submit)
        runner.submit = device.begun.put  # type: ignore[method-assign]
        yield device


def test_drafts_are_verified_in_turn_and_what_is_behind_a_wrong_token_is_dropped(
    device: DraftingDevice,
) -> None:
    device.open()
    device.draft(1, 6, ANSWER[:3])
    device.draft(2, 9, ANSWER[3:6])
    device.draft(3, 12, [ANSWER[6], wrong(ANSWER[7]), 1])
    device.draft(4, 15, [5, 6, 7], [*PROMPT, *ANSWER[:7], wrong(ANSWER[7]), 1])
    device.settle()
    rounds = [device.verify() for _ in range(5)]
    # At first the server decodes by itself, since no draft was here; then only what is not committed is verified.
    assert device.read(5) == [
        (0, "OK", 6, [], ANSWER[0]),
        (1, "OK", 7, [1, 2], ANSWER[3]),
        (2, "OK", 10, [1, 2], ANSWER[6]),
        (3, "OK", 13, [], ANSWER[7]),
        (4, "STALE", 0, [], 0),
    ]
    assert [pending.number for pending in rounds] == [0, 1, 2, 3, 0], (
        "the draft that was dropped is not verified"
    )
    assert [len(pending.nodes) for pending in rounds] == [0, 2, 2, 2, 0]
    assert device.read(1) == [(0, "OK", 14, [], ANSWER[8])]
    registry = device.service.handler.metrics.registry
    assert registry.get_sample_value("skit_stale_drafts_total") == 1


def test_a_draft_for_another_text_is_dropped_though_it_begins_where_the_text_ends(
    device: DraftingDevice,
) -> None:
    device.open()
    device.verify()
    assert device.read(1) == [(0, "OK", 6, [], ANSWER[0])]
    device.draft(
        1, 8, ANSWER[2:5], [*PROMPT, ANSWER[0], wrong(ANSWER[1])]
    )  # from a chain that went wrong
    device.draft(2, 7, [wrong(ANSWER[1]), *ANSWER[2:4]])  # its first token is not the target's
    device.draft(3, 6, ANSWER[:2])  # the server knows all of it
    device.draft(4, 9, ANSWER[3:6])  # reaches beyond the text
    device.settle()
    device.verify()
    assert device.read(5) == [
        (0, "OK", 7, [], ANSWER[1]),
        *[(n, "STALE", 0, [], 0) for n in (1, 2, 3, 4)],
    ]
    device.draft(5, 8, ANSWER[2:4])
    device.settle()
    device.verify()
    device.verify()
    assert device.read(2) == [(0, "OK", 8, [], ANSWER[2]), (5, "OK", 9, [1], ANSWER[4])]


def test_a_device_cannot_flood_the_queue_and_an_answer_returns_its_place(
    device: DraftingDevice,
) -> None:
    device.open()
    for number in range(1, 7):
        device.draft(number, 6, ANSWER[:3])
    refused = [device.answer() for _ in range(2)]
    assert [(verdict.round, Status(verdict.status).name) for verdict in refused] == [
        (5, "TOO_MANY_AHEAD"),
        (6, "TOO_MANY_AHEAD"),
    ]
    for _ in range(3):
        device.verify()
    verdicts = device.read(6)
    assert Counter(number for number, *_ in verdicts) == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}, (
        "one answer for each draft"
    )
    assert [status for number, status, *_ in verdicts if number] == [
        "OK",
        "STALE",
        "STALE",
        "STALE",
    ]
    for number in range(7, 11):
        device.draft(number, 6, ANSWER[:3])
    device.settle()


def test_what_waits_has_no_more_bytes_than_a_frame_may_have() -> None:
    with controlled(frame_bytes=150) as device:
        device.open()
        device.draft(1, 6, ANSWER[:3])
        device.draft(2, 6, [1] * 120)
        assert Status(device.answer().status) is Status.TOO_MANY_AHEAD


BROKEN = {
    "a tree": ({"parents": [0, 0, 0]}, Status.BROKEN_TREE),
    "a base in the prompt": ({"base": 2}, Status.WRONG_BASE),
    "a base beyond all": ({"base": 1 << 20}, Status.WRONG_BASE),
    "beyond the context": ({"tokens": [1] * (CAPACITY - 5)}, Status.CONTEXT_FULL),
    "a token too large": ({"tokens": [VOCABULARY]}, Status.TOKEN_OUTSIDE_VOCABULARY),
    "no time": ({"round_ms": float("nan")}, Status.BROKEN_DEADLINE),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_draft_is_refused_by_name_and_the_session_goes_on(
    device: DraftingDevice, case: str
) -> None:
    fault, status = BROKEN[case]
    device.open()
    device.draft(1, **{"base": 6, "tokens": ANSWER[:3], **fault})
    assert Status(device.answer().status) is status
    device.draft(2, 6, ANSWER[:3])
    device.settle()
    device.verify()
    device.verify()
    assert [number for number, *_ in device.read(2)] == [0, 2]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"ahead": 5}, Status.TOO_MANY_AHEAD),
        ({"max_tokens": 0}, Status.BROKEN_DEADLINE),
        ({"layers": [1]}, Status.BROKEN_DEADLINE),
        ({"silence_ms": 500}, Status.BROKEN_DEADLINE),
        ({"ends": [VOCABULARY]}, Status.TOKEN_OUTSIDE_VOCABULARY),
    ],
)
def test_a_session_that_no_server_can_keep_is_refused(
    device: DraftingDevice, more: dict[str, Any], status: Status
) -> None:
    assert Status(device.open(**more).status) is status


def test_such_a_session_is_not_asked_for_its_response(device: DraftingDevice) -> None:
    device.open()
    device.connection.send(
        Up(generate={"session": device.name, "round": 1, "base": 6, "max_tokens": 5})
    )
    assert Status(device.answer().status) is Status.OUT_OF_ORDER


@pytest.mark.parametrize(
    ("more", "tokens"), [({"max_tokens": 3}, 3), ({"max_tokens": 9, "ends": ANSWER[4:5]}, 5)]
)
def test_the_server_decodes_by_itself_up_to_the_end_that_the_device_names(
    device: DraftingDevice, more: dict[str, Any], tokens: int
) -> None:
    device.open(**more)
    for _ in range(tokens):
        device.verify()
    assert [bonus for *_, bonus in device.read(tokens)] == ANSWER[:tokens]
    device.settle()
    assert device.begun.empty()


def test_a_device_that_was_away_is_told_what_it_missed_and_sends_again_what_was_queued(
    device: DraftingDevice,
) -> None:
    device.open()
    device.draft(1, 6, ANSWER[:3])
    device.draft(2, 9, ANSWER[3:6])
    device.settle()
    device.connection.reconnect()
    device.open()  # with none of the tokens, while a round is under way
    device.draft(3, 9, ANSWER[3:6])
    device.settle()
    device.verify()
    missed = device.answer()
    assert (Status(missed.status), missed.base, [*missed.suffix]) == (Status.REBASE, 6, ANSWER[:1])
    # The first draft was forgotten with its connection; the third reaches beyond the text now, and is dropped.
    assert device.read(1) == [(3, "STALE", 0, [], 0)]
    device.verify()
    assert device.read(1) == [(0, "OK", 7, [], ANSWER[1])]


def test_nobody_decodes_for_a_device_that_is_away() -> None:
    with controlled() as device:
        device.open()
        device.connection.close()
        sessions = device.service.handler.sessions
        for _ in range(1000):
            if all(session.stream is None for session in sessions):
                break
            Event().wait(0.01)
        device.verify()
        Event().wait(0.1)
        assert device.begun.empty()
        assert [len(session.text.tokens) for session in sessions] == [7]


def test_what_remains_of_a_draft_keeps_its_own_distributions() -> None:
    tokens = [4, 5, 6]
    frame = messages.Draft(base=2, tokens=tokens, counts=[2, 2, 2], text_hash=text_hash([1, 2]))
    for row, token in enumerate(tokens):
        frame.ids.extend([token, 0])
        frame.probabilities.extend([0.25 * (row + 1), 1 - 0.25 * (row + 1)])
    tree = fitting_tree(frame, [1, 2, 4], VOCABULARY)
    assert tree is not None
    assert (tree.tokens, tree.parents, tree.sampled) == ([4, 5, 6], [-1, 0, 1], True)
    for node, probability in ((1, 0.5), (2, 0.75)):
        source, row = tree.source(node)
        assert isinstance(source, ReceivedDistributions)
        assert float(source.probabilities[row][tree.tokens[node]]) == probability


@dataclass
class Wire:
    """The messages that a device sent, by its own account, and those that came back."""

    chunks: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """The text before each chunk that was sent, and its tokens."""
    sent_bytes: int = 0
    most_unanswered: int = 0


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire, transmit = Wire(), FreeRunningVerifier._transmit

    def watched(verifier: FreeRunningVerifier, opened: _OpenSession, chunk: _SentChunk) -> None:
        transmit(verifier, opened, chunk)
        wire.chunks.append((opened.sent[: chunk.base], list(chunk.tokens)))
        wire.sent_bytes += chunk.frame.ByteSize()
        wire.most_unanswered = max(wire.most_unanswered, len(opened.unanswered))

    monkeypatch.setattr(FreeRunningVerifier, "_transmit", watched)
    return wire


def test_every_chunk_is_what_the_draft_model_says_after_the_text_before_it(wire: Wire) -> None:
    """After a token that was rolled back, too: its keys and values must be gone."""
    with serving() as (_, address):
        # The server decodes most by itself where the device has to wait for a processor.
        for _ in range(20):
            decode_remotely(METHOD, Connection(address, CALLER, Link(rtt_s=0.01)), REQUESTS[:2])
            if len(wire.chunks) > 20:
                break
    assert len(wire.chunks) > 20
    for text, tokens in wire.chunks:
        drafted = plain_logits(DRAFT, [*text, *tokens])[len(text) - 1 : -1].argmax(-1).tolist()
        assert tokens == drafted


def test_what_was_sent_and_dropped_is_counted_and_costs_no_verification(wire: Wire) -> None:
    with serving(limits=ServerLimits(context=CAPACITY, ahead=5)) as (service, address):
        records = decode_remotely(METHOD, Connection(address, CALLER, Link(rtt_s=0.01)), REQUESTS)
        registry = service.handler.metrics.registry
        stale = registry.get_sample_value("skit_stale_drafts_total")
    rounds = [step for record in records.values() for step in record.rounds]
    assert outputs(records) == PLAIN
    assert stale
    assert 0 < sum(step.stale_bytes for step in rounds) < sum(step.sent_bytes for step in rounds)
    # The bytes that followed a request's last verdict are in no round.
    assert sum(step.sent_bytes for step in rounds) <= wire.sent_bytes
    assert wire.most_unanswered <= 5, "no more than the server's credit"
    prompts = [request.prompt_ids for request in REQUESTS]
    sent = [
        sum(text[: len(prompt)] == list(prompt) for text, _ in wire.chunks) for prompt in prompts
    ]
    assert max(sent) > 5, "an answer returns its credit"
    finished = list(records.values())
    metrics = MethodMetrics(RequestGroup(finished), NO_REQUESTS, units_of(finished)).own()
    assert metrics["draft_bytes"] == sum(step.sent_bytes for step in rounds)
    assert 0 < metrics["stale_bytes_share"] < 1
    assert metrics["wdt_share"] > 0.5
    assert all(step.submitted <= 3 for step in rounds)


def test_the_window_is_bounded_where_nothing_comes_back() -> None:
    """Four chunks of three tokens are drafted before the first verdict on a link with a round trip of a second."""
    with serving() as (_, address):
        models = {"draft": make_runner(TARGET, 1, CAPACITY)}
        records = decode_remotely(
            METHOD, Connection(address, CALLER, Link(rtt_s=0.5)), REQUESTS[:1], models=models
        )
    assert max(step.drafted for step in records["000"].rounds) == 12
    assert outputs(records)["000"] == PLAIN["000"]


@pytest.mark.nightly  # tests/live/test_failover.py does it for devices that wait
def test_a_run_goes_on_when_another_server_takes_the_place_of_the_first(
    models: dict[str, Runner],
) -> None:
    decoded: dict[str, list[int]] = {}
    with serving() as (_, address):
        connection = Connection(address, CALLER, Link(rtt_s=0.02))
        runs = Thread(
            target=lambda: decoded.update(
                outputs(decode_remotely(METHOD, connection, MANY, models=models))
            )
        )
        runs.start()
        Event().wait(0.2)
    with serving(make_server(listen=ListenAddress(address))):
        runs.join(PATIENCE_S)
    assert connection.reconnections >= 1
    assert decoded == outputs(decode_here(AUTOREGRESSIVE, MANY))


MANY = make_requests(random_prompts([5, 9, 17] * 6, VOCABULARY), 30)


def test_drafts_that_were_in_flight_when_the_connection_broke_lose_nothing(
    models: dict[str, Runner], wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth draft finds its stream broken; the server goes on and keeps the session."""
    sent = 0
    send = Connection.send

    def breaking(connection: Connection, frame: Up) -> None:
        nonlocal sent
        sent += frame.WhichOneof("kind") == "draft"
        send(connection, frame)
        if frame.WhichOneof("kind") == "draft" and sent % 10 == 0:
            assert connection._stream is not None
            connection._stream._call.cancel()

    monkeypatch.setattr(Connection, "send", breaking)
    reconnections = 0
    for _ in range(20):
        wire.chunks.clear()
        with serving() as (_, address):
            connection = Connection(address, CALLER, Link(rtt_s=0.005))
            assert (
                outputs(decode_remotely(METHOD, connection, REQUESTS, batch_size=2, models=models))
                == PLAIN
            )
        reconnections += connection.reconnections
        chunks = [(*text, *tokens) for text, tokens in wire.chunks]
        if len(set(chunks)) < len(chunks):
            break  # where the device waits for a processor, the text may have gone on from a chunk in flight
    assert reconnections >= 1
    assert len(set(chunks)) < len(chunks), "a chunk in flight is sent again"


def test_a_server_that_forgot_the_session_is_given_it_again() -> None:
    with serving() as (service, address):
        connection = Connection(address, CALLER, Link(rtt_s=0.005))
        handler, take = service.handler, service.handler.free_running.take
        drafts = 0

        def forgetful(session: ServerSession, frame: messages.Draft) -> None:
            nonlocal drafts
            drafts += 1
            if drafts % 7 == 0:
                handler.drop(session, "forgotten")
                handler.draft(frame, session.stream)
            else:
                take(session, frame)

        handler.free_running.take = forgetful  # type: ignore[method-assign]
        assert outputs(decode_remotely(METHOD, connection, REQUESTS)) == PLAIN
    assert drafts > 7


class ScriptedConnection:
    """A server that says what it is told to, each time a device waits for it."""

    address = "scripted"
    answer_arrived = False
    welcome = messages.Welcome(limits={"ahead": 16})

    def __init__(self) -> None:
        self.sent: list[Up] = []
        self.script: list[Callable[[], Down]] = []

    def send(self, frame: Up) -> None:
        self.sent.append(frame)

    def receive(self) -> tuple[float, Down]:
        return 0.0, self.script.pop(0)()


def test_what_a_forgotten_session_has_said_is_heard_once() -> None:
    """A verdict of it that was still on its way, and the new session's on the same tokens, are not both taken.

    The new session begins behind all that was heard, and what the old one says after that counts for nothing: where
    tokens are drawn it may be something else.
    """
    connection: Any = ScriptedConnection()
    verifier = FreeRunningVerifier(connection, Sampler(), 0, MeasuringClock(torch.device("cpu")), 2)
    session = Session(
        Request("one", "", (1, 2, 3), 8),
        RequestRandom(0, "one"),
        frozenset(),
        0.0,
        make_record("one"),
    )
    verifier.admit(session)
    old = connection.sent[0].open.session

    def renamed(**verdict: Any) -> Down:
        opened = connection.sent[-2].open
        assert opened.session not in ("", old)
        assert list(opened.output) == [10, 11], (
            "the second verdict was heard, though no round has taken it"
        )
        chunk = connection.sent[-1].draft
        assert (chunk.session, list(chunk.tokens)) == (opened.session, [12, 14])
        return Down(verdict={"session": opened.session, "round": chunk.round, **verdict})

    connection.script = [
        lambda: Down(verdict={"session": old, "base": 3, "bonus": 10}),
        lambda: Down(verdict={"session": old, "base": 4, "bonus": 11}),
        lambda: Down(refused={"session": old, "round": 1, "status": Status.UNKNOWN_SESSION}),
        lambda: Down(verdict={"session": old, "base": 5, "bonus": 99}),
        lambda: renamed(base=5, path=[1], bonus=13),
    ]
    with torch.inference_mode():
        committed = []
        for chain in ([10, 11, 12, 14], [11, 12, 14], [12, 14]):
            tree = TokenTree(session.tokens[-1])
            for token in chain:
                tree.add(token, tree.last, LookUpDistribution("test", 1.0), 0)
            pending = verifier.send([Draft(session, tree)], [[]])
            if len(committed) == 1:
                verifier._take(*connection.receive())
                verifier._take(*connection.receive())
            (verdict,) = pending()
            tokens = [*(tree.tokens[node] for node in verdict.path), verdict.bonus]
            session.commit(tokens)
            committed.append(tokens)
    assert committed == [[10], [11], [12, 13]]
    assert not connection.script


SAMPLED = Sampler(0.8, top_k=20)


def test_tokens_that_are_not_drawn_give_the_tokens_of_plain_sampling() -> None:
    """They are matched against the target's draws, each of which depends on its position alone."""
    repeating = make_requests([[7, 8, 9] * 4, [5, 6] * 5], 24)
    with serving() as (_, address):
        remote = decode_remotely(
            parse_method("decoupled:k=3,in_flight=4,drafter=prompt-lookup"),
            Connection(address, CALLER),
            repeating,
            sampler=SAMPLED,
            models={},
        )
    assert outputs(remote) == outputs(decode_here(AUTOREGRESSIVE, repeating, sampler=SAMPLED))


@pytest.mark.nightly  # drawn rules are enumerated in tests/decoding/test_drawn_rules.py
def test_drawn_tokens_keep_the_distribution_of_plain_sampling() -> None:
    """The fifth token of many responses, which chunks and the server's own rounds decide by turns."""
    number, length = 300, 5
    sampler = Sampler(1.0, top_k=3)
    requests = make_requests([PROMPT] * number, length)
    with serving() as (_, address):
        records = decode_remotely(METHOD, Connection(address, CALLER), requests, sampler=sampler)
    plain_records = decode_here(
        AUTOREGRESSIVE, make_requests([PROMPT] * (2 * number), length)[number:], sampler=sampler
    )
    assert any(step.accepted for record in records.values() for step in record.rounds)
    for position in (1, length - 1):
        counts = Counter(record.output_ids[position] for record in records.values())
        plain = Counter(record.output_ids[position] for record in plain_records.values())
        assert two_sample_chi_square(counts, plain) < 4.0


def two_sample_chi_square(one: Counter[int], other: Counter[int]) -> float:
    """Return by how many standard deviations the chi-square of two samples of one size is above its mean."""
    frequent = [token for token in one | other if one[token] + other[token] >= 16]
    pairs = [(one[token], other[token]) for token in frequent]
    pairs.append(
        (
            sum(one.values()) - sum(a for a, _ in pairs),
            sum(other.values()) - sum(b for _, b in pairs),
        )
    )
    terms = [(a - b) ** 2 / (a + b) for a, b in pairs if a + b]
    freedom = max(1, len(terms) - 1)
    return (sum(terms) - freedom) / (2 * freedom) ** 0.5


def test_a_server_of_an_earlier_version_is_one_line() -> None:
    with pytest.raises(
        SkitError,
        match=r"10\.0\.0\.1:7 is a skit serve of an earlier version, which takes one draft",
    ):
        require_ahead("10.0.0.1:7", 0)
    with pytest.raises(
        SkitError, match="takes 4 drafts ahead of their verdicts: give in_flight=4 or less"
    ):
        require_ahead("10.0.0.1:7", 4, 5)
    with serving() as (service, address):
        service.handler.welcome.limits.ahead = 0
        with pytest.raises(SkitError, match="earlier version"):
            decode_remotely(METHOD, Connection(address, CALLER), REQUESTS[:1])
