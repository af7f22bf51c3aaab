"""Frame by frame: rounds are answered once, sessions outlive their streams, and what is wrong is refused by name."""

from collections.abc import Iterator
from typing import Any

import pytest
from live_server import CALLER, CAPACITY, TARGET, VOCABULARY, make_server, serving
from tiny_models import plain_greedy

from specbench_kit.core.errors import SkitError
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.wire import METHOD, Status, Up
from specbench_kit.serving.schedulers.waiting import WaitingRound

PROMPT = [3, 14, 15, 9, 2, 6]
ANSWER = plain_greedy(TARGET, PROMPT, 12)[0]
GREEDY: dict[str, object] = {"temperature": 0.0, "seed": 0, "request": "a"}
WRONG = (ANSWER[0] + 1) % VOCABULARY


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (_, address):
        yield address


def ask(connection: Connection, **frame: Any) -> Any:
    """Send a frame and wait for its answer."""
    connection.send(Up(**frame))
    _, down = connection.receive(20)
    return getattr(down, down.WhichOneof("kind"))


def begin(
    connection: Connection, name: str, output: list[int] | None = None, **sampling: object
) -> Any:
    opening = {
        "session": name,
        "prompt": PROMPT,
        "output": output or [],
        "sampling": {**GREEDY, **sampling},
    }
    return ask(connection, open=opening)


def draft(
    connection: Connection, name: str, number: int, base: int, tokens: list[int], **more: object
) -> Any:
    return ask(
        connection, draft={"session": name, "round": number, "base": base, "tokens": tokens, **more}
    )


def test_a_round_is_answered_once_and_the_same_way_over_another_stream(address: str) -> None:
    first, second = Connection(address, CALLER), Connection(address, CALLER)
    begin(first, "once")
    answer = draft(first, "once", 1, 6, [*ANSWER[:2], WRONG])
    first.close()
    again = draft(second, "once", 1, 6, [*ANSWER[:2], WRONG])
    assert (list(answer.path), answer.bonus) == ([1, 2], ANSWER[2])
    assert again == answer
    assert draft(second, "once", 2, 9, ANSWER[3:5]).bonus == ANSWER[5]


def test_a_device_that_lags_is_told_what_it_lacks(address: str) -> None:
    connection = Connection(address, CALLER)
    begin(connection, "lags")
    draft(connection, "lags", 1, 6, ANSWER[:3])
    answer = draft(connection, "lags", 2, 7, ANSWER[1:2])
    assert (answer.status, list(answer.suffix)) == (Status.REBASE, ANSWER[1:4])


def test_a_server_that_forgot_everything_goes_on_with_what_the_device_has(address: str) -> None:
    connection = Connection(address, CALLER)
    assert draft(connection, "gone", 7, 8, ANSWER[2:4]).status == Status.UNKNOWN_SESSION
    begin(connection, "gone", ANSWER[:2])
    answer = draft(connection, "gone", 7, 8, ANSWER[2:4])
    assert ([*answer.path], answer.bonus, answer.cached) == ([1, 2], ANSWER[4], 0)


WRONG_DRAFTS = {
    "out of order": ({"round": 5}, Status.OUT_OF_ORDER),
    "a base ahead": ({"base": 99}, Status.WRONG_BASE),
    "a base in the prompt": ({"base": 3}, Status.WRONG_BASE),
    "a token too large": ({"tokens": [VOCABULARY]}, Status.TOKEN_OUTSIDE_VOCABULARY),
    "a cycle": ({"tokens": [1, 2], "parents": [2, 1]}, Status.BROKEN_TREE),
    "a node below itself": ({"tokens": [1], "parents": [1]}, Status.BROKEN_TREE),
    "a parent too few": ({"tokens": [1, 2], "parents": [0]}, Status.BROKEN_TREE),
    "too many nodes": ({"tokens": [1] * 300}, Status.TOO_MANY_NODES),
    "beyond the context": ({"tokens": [1] * (CAPACITY - 6)}, Status.CONTEXT_FULL),
    "no time": ({"remaining_ms": float("nan")}, Status.BROKEN_DEADLINE),
    "a distribution of a greedy draft": (
        {"tokens": [1], "counts": [1], "ids": [1], "probabilities": [1.0]},
        Status.BROKEN_DISTRIBUTION,
    ),
}


def test_a_draft_waits_until_the_deadlines_that_its_device_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as (service, own_address):
        queue, waited = service.handler.batch_runner._queue, list[WaitingRound]()
        add_all = queue.add_all
        monkeypatch.setattr(
            queue, "add_all", lambda rounds: (waited.extend(rounds), add_all(rounds))[1]
        )
        connection = Connection(own_address, CALLER)
        begin(connection, "hurried")
        draft(connection, "hurried", 1, 6, [], round_ms=250.0, remaining_ms=2000.0)
    (round_,) = waited
    assert round_.deadline_s - round_.arrived_s == pytest.approx(0.25)
    assert round_.response_deadline_s - round_.arrived_s == pytest.approx(2.0)


@pytest.mark.parametrize("case", WRONG_DRAFTS)
def test_a_wrong_draft_is_refused_by_name_and_others_go_on(address: str, case: str) -> None:
    wrong, status = WRONG_DRAFTS[case]
    connection, neighbour = Connection(address, CALLER), Connection(address, CALLER)
    begin(connection, case)
    begin(neighbour, f"beside {case}")
    draft(connection, case, 1, 6, [])
    frame = {"number": 2, "base": 7, "tokens": ANSWER[1:2], **wrong}
    refused = draft(connection, case, frame.pop("round", frame.pop("number")), **frame)
    assert Status(refused.status) is status
    assert draft(neighbour, f"beside {case}", 1, 6, ANSWER[:2]).bonus == ANSWER[2]


@pytest.mark.parametrize(
    ("counts", "ids", "probabilities"),
    [
        ([2], [1, 2], [0.5, 0.6]),
        ([1], [2], [1.0]),
        ([2], [1, 1], [0.5, 0.5]),
        ([2], [1], [1.0]),
        ([1], [1], [float("nan")]),
    ],
)
def test_a_distribution_that_is_none_is_refused(
    address: str, counts: list[int], ids: list[int], probabilities: list[float]
) -> None:
    connection = Connection(address, CALLER)
    name = f"q{counts}{ids}{probabilities}"
    begin(connection, name, temperature=1.0)
    refused = draft(
        connection, name, 1, 6, [1], counts=counts, ids=ids, probabilities=probabilities
    )
    assert Status(refused.status) is Status.BROKEN_DISTRIBUTION


@pytest.mark.parametrize(
    ("opening", "status"),
    [
        ({"prompt": []}, Status.EMPTY_PROMPT),
        ({"prompt": [VOCABULARY]}, Status.TOKEN_OUTSIDE_VOCABULARY),
        ({"prompt": [1] * (CAPACITY + 1)}, Status.CONTEXT_FULL),
        ({"prompt": [1], "sampling": {"temperature": -1.0}}, Status.BROKEN_SAMPLING),
    ],
)
def test_a_wrong_session_is_refused(
    address: str, opening: dict[str, object], status: Status
) -> None:
    refused = ask(Connection(address, CALLER), open={"session": str(status), **opening})
    assert Status(refused.status) is status


def test_another_tokenizer_is_refused_with_a_name(address: str) -> None:
    with pytest.raises(SkitError, match="WRONG_TOKENIZER"):
        Connection(address, ClientIdentity("other", VOCABULARY))


def test_a_token_is_asked_for() -> None:
    with serving(tokens=("secret",)) as (_, address):
        with pytest.raises(SkitError, match="WRONG_TOKEN: "):
            Connection(address, ClientIdentity("same", VOCABULARY, "guess"))
        assert (
            Connection(address, ClientIdentity("same", VOCABULARY, "secret")).welcome.model
            == "tiny"
        )


def test_bytes_that_are_no_frame_end_their_stream_alone(address: str) -> None:
    import grpc

    good = Connection(address, CALLER)
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD)(iter([b"\xff\xff\xff"]))
        with pytest.raises(grpc.RpcError, match="NO_HELLO"):
            next(call)
    assert begin(good, "beside bytes").session == "beside bytes"


def test_a_frame_too_large_ends_its_stream_alone() -> None:
    with serving(limits=ServerLimits(context=CAPACITY, frame_bytes=2000)) as (_, address):
        large, good = Connection(address, CALLER), Connection(address, CALLER)
        large.send(Up(open={"session": "large", "prompt": [1] * 5000}))
        with pytest.raises(ConnectionLostError, match="RESOURCE_EXHAUSTED"):
            large.receive(20)
        assert begin(good, "small").session == "small"


def test_sessions_without_a_device_make_room() -> None:
    with serving(make_server(limits=ServerLimits(context=CAPACITY, sessions=1))) as (_, address):
        first, second = Connection(address, CALLER), Connection(address, CALLER)
        begin(first, "first")
        assert Status(begin(second, "second").status) is Status.TOO_MANY_SESSIONS
        first.close()
        second.send(Up(ping={"count": 1}))
        second.receive(20)
        answer = begin(second, "second")
        while getattr(answer, "status", 0):
            answer = begin(second, "second")
        assert answer.session == "second"
