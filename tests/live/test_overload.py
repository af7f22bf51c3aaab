"""What a server does that is behind: frames at its desk, while nobody verifies yet."""

from queue import SimpleQueue
from typing import Any

import pytest
from live_server import CAPACITY, TARGET, make_server
from tiny_models import plain_greedy

from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.batches import VerifiedRound
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.server.stream import DeviceStream, FrameHandler
from specbench_kit.live.wire import Down, Status, Up

PROMPT = [3, 14, 15, 9, 2, 6]
ANSWER = plain_greedy(TARGET, PROMPT, 4)[0]


def make_desk(**bounds: Any) -> FrameHandler:
    return make_server(bounds=ServerLimits(context=CAPACITY, **bounds)).desk


def send(stream: DeviceStream, name: str) -> Any | None:
    """Open a session and send a draft that is right; what the draft was answered at once."""
    stream.take(Up(open={"session": name, "prompt": PROMPT, "sampling": {"request": name}}))
    stream.out.get_nowait()
    stream.take(Up(draft={"session": name, "round": 1, "base": len(PROMPT), "tokens": ANSWER[:2]}))
    return None if stream.out.empty() else stream.out.get_nowait()


def test_who_waits_behind_others_gets_one_token_and_then_is_told_to_come_again() -> None:
    desk = make_desk(waiting=1)
    stream = DeviceStream(desk)
    assert [send(stream, name) for name in ("first", "second")] == [None, None]
    third = send(stream, "third").refused
    assert (Status(third.status), third.retry_ms > 0) == (Status.OVERLOADED, True)
    found: SimpleQueue[list[VerifiedRound]] = SimpleQueue()
    desk.batches.deliver = found.put
    desk.batches.start()
    desk.done(found.get(timeout=20))
    desk.batches.stop()
    first, second = (stream.out.get_nowait().verdict for _ in range(2))
    assert ([*first.path], first.bonus, first.status) == ([1, 2], ANSWER[2], Status.OK)
    assert ([*second.path], second.bonus, second.status) == ([], ANSWER[0], Status.DEGRADED)


def test_a_round_that_is_sent_twice_before_it_is_verified_is_answered_once() -> None:
    desk = make_desk()
    stream, found = DeviceStream(desk), SimpleQueue[list[VerifiedRound]]()
    assert send(stream, "twice") is None
    again = {"session": "twice", "round": 1, "base": len(PROMPT), "tokens": ANSWER[:2]}
    stream.take(Up(draft=again))
    stream.take(Up(draft={**again, "round": 2}))
    assert Status(stream.out.get_nowait().refused.status) is Status.IN_FLIGHT
    desk.batches.deliver = found.put
    desk.batches.start()
    desk.done(found.get(timeout=20))
    desk.batches.stop()
    assert (stream.out.get_nowait().verdict.extra, stream.out.empty(), desk.batches.waiting) == (ANSWER[2], True, 0)


def test_who_does_not_read_is_sent_away() -> None:
    stream = DeviceStream(make_desk(credit=5))
    for number in range(5):
        stream.take(Up(ping={"count": number}))
    with pytest.raises(Refusal, match="FLOOD: more than 5 answers were not read"):
        stream.take(Up(ping={"count": 6}))


def test_a_server_that_leaves_takes_no_round() -> None:
    desk = make_desk()
    desk.leaving = True
    refused = send(DeviceStream(desk), "late").refused
    assert Status(refused.status) is Status.GOING_AWAY
    assert Down(refused=refused).WhichOneof("kind") == "refused"
