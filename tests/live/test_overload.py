"""What a server does that is behind: frames at its handler, while nobody verifies yet."""

from queue import SimpleQueue
from typing import Any

import pytest
from live_server import CAPACITY, TARGET, make_server
from tiny_models import plain_greedy

from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.wire import Down, Refusal, Status, Up

PROMPT = [3, 14, 15, 9, 2, 6]
ANSWER = plain_greedy(TARGET, PROMPT, 4)[0]


def make_handler(**limits: Any) -> FrameHandler:
    return make_server(limits=ServerLimits(context=CAPACITY, **limits)).handler


def send(stream: DeviceStream, name: str) -> Any | None:
    """Open a session and send a draft that is right; what the draft was answered at once."""
    stream.receive(Up(open={"session": name, "prompt": PROMPT, "sampling": {"request": name}}))
    stream.answers.get_nowait()
    stream.receive(
        Up(draft={"session": name, "round": 1, "base": len(PROMPT), "tokens": ANSWER[:2]})
    )
    return None if stream.answers.empty() else stream.answers.get_nowait()


def test_who_waits_behind_others_gets_one_token_and_then_is_told_to_come_again() -> None:
    handler = make_handler(waiting=1)
    stream = DeviceStream(handler)
    assert [send(stream, name) for name in ("first", "second")] == [None, None]
    third = send(stream, "third").refused
    assert (Status(third.status), third.retry_ms > 0) == (Status.OVERLOADED, True)
    batches: SimpleQueue[list[VerifiedRound]] = SimpleQueue()
    handler.batch_runner.deliver = batches.put
    handler.batch_runner.start()
    handler.answer(batches.get(timeout=20))
    handler.batch_runner.stop()
    first, second = (stream.answers.get_nowait().verdict for _ in range(2))
    assert ([*first.path], first.bonus, first.status) == ([1, 2], ANSWER[2], Status.OK)
    assert ([*second.path], second.bonus, second.status) == ([], ANSWER[0], Status.DEGRADED)


def test_a_round_that_is_sent_twice_before_it_is_verified_is_answered_once() -> None:
    handler = make_handler()
    stream, batches = DeviceStream(handler), SimpleQueue[list[VerifiedRound]]()
    assert send(stream, "twice") is None
    again = {"session": "twice", "round": 1, "base": len(PROMPT), "tokens": ANSWER[:2]}
    stream.receive(Up(draft=again))
    stream.receive(Up(draft={**again, "round": 2}))
    assert Status(stream.answers.get_nowait().refused.status) is Status.IN_FLIGHT
    handler.batch_runner.deliver = batches.put
    handler.batch_runner.start()
    handler.answer(batches.get(timeout=20))
    handler.batch_runner.stop()
    assert (
        stream.answers.get_nowait().verdict.bonus,
        stream.answers.empty(),
        handler.batch_runner.waiting,
    ) == (
        ANSWER[2],
        True,
        0,
    )


def test_who_does_not_read_is_sent_away() -> None:
    stream = DeviceStream(make_handler(credit=5))
    for number in range(5):
        stream.receive(Up(ping={"count": number}))
    with pytest.raises(Refusal, match="FLOOD: more than 5 answers were not read"):
        stream.receive(Up(ping={"count": 6}))


def test_a_server_that_leaves_takes_no_round() -> None:
    handler = make_handler()
    handler.admission.stopping = True
    refused = send(DeviceStream(handler), "late").refused
    assert Status(refused.status) is Status.GOING_AWAY
    assert Down(refused=refused).WhichOneof("kind") == "refused"
