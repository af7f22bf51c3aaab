"""Verdicts that come when their session has ended: nothing of it reaches the device."""

from collections.abc import Callable

import pytest
import torch
from offline_server import ANSWER, PROMPT, device, offline, open_session, read, send_draft, verify

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.wire import Up


def verify_undelivered(handler: FrameHandler) -> list[VerifiedRound]:
    """Verify a batch whose answers the event loop does not have yet."""
    verified: list[VerifiedRound] = []
    handler.batch_runner.deliver = verified.extend
    with torch.inference_mode():
        handler.batch_runner._verify_next()
    return verified


def close_and_open(stream: DeviceStream) -> None:
    stream.receive(Up(close=messages.Close(session="s")))
    open_session(stream, "s")


def open_with_another_text(stream: DeviceStream) -> None:
    stream.receive(Up(open={"session": "s", "prompt": PROMPT[::-1]}))
    read(stream)


def generate(stream: DeviceStream) -> None:
    frame = {"session": "s", "round": 1, "base": len(PROMPT), "max_tokens": 3}
    stream.receive(Up(generate=frame))


def draft(stream: DeviceStream) -> None:
    send_draft(stream, "s")


@pytest.mark.parametrize("begin", [draft, generate])
@pytest.mark.parametrize("end", [close_and_open, open_with_another_text])
def test_a_session_of_the_same_name_gets_nothing_of_the_one_before(
    begin: Callable[[DeviceStream], None], end: Callable[[DeviceStream], None]
) -> None:
    """Both number their rounds from 1, so that the device would take the verdict for its own."""
    handler = offline()
    stream = device(handler)
    open_session(stream, "s")
    begin(stream)
    late = verify_undelivered(handler)
    end(stream)
    handler.answer(late)
    assert stream.unread == 0
    stream.receive(Up(close=messages.Close(session="s")))
    open_session(stream, "s")
    send_draft(stream, "s")
    verify(handler)
    verdict = read(stream)
    assert (verdict.round, list(verdict.path), verdict.bonus) == (1, [1, 2], ANSWER[2])
    assert stream.unread == 0
