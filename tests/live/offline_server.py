"""A server without a network or threads: frames go in one by one, and it verifies when a test says so."""

from typing import Any

import torch
from live_server import CAPACITY, TARGET, make_server
from tiny_models import plain_greedy

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.grammars import ServerGrammars
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Up

PROMPT = [3, 14, 15, 9, 2, 6]
ANSWER = plain_greedy(TARGET, PROMPT, 40)[0]
HOST = "ipv4:127.0.0.1:5000"


def offline(
    slots: int = 4,
    tokens: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    grammars: ServerGrammars | None = None,
    **limits: Any,
) -> FrameHandler:
    """Return the handler of a server whose verification thread is never started."""
    bounds = ServerLimits(context=CAPACITY, **limits)
    handler = make_server(
        slots=slots, limits=bounds, tokens=tokens, methods=methods, grammars=grammars
    ).handler
    handler.batch_runner.deliver = handler.answer
    return handler


def device(
    handler: FrameHandler, token: str = "", name: str = "", peer: str = HOST
) -> DeviceStream:
    """Return a stream to a handler, of the account that the token or the peer's host has."""
    hello = messages.Hello(token=token, device=name)
    return DeviceStream(handler, handler.admission.caller(hello, peer), peer)


def read(stream: DeviceStream) -> Any:
    """Return the next answer to a device, as if it had been written."""
    down = stream.answers.get_nowait()
    assert down is not None
    stream.written(down)  # type: ignore[arg-type]
    return getattr(down, down.WhichOneof("kind"))  # type: ignore[union-attr]


def ask(stream: DeviceStream, **frame: Any) -> Any:
    """Send a frame and return what it is answered at once."""
    stream.receive(Up(**frame))
    return read(stream)


def open_session(stream: DeviceStream, name: str, **more: Any) -> ServerSession:
    """Open a session of the prompt."""
    sampling = {"request": name, **more.pop("sampling", {})}
    opened = ask(stream, open={"session": name, "prompt": PROMPT, "sampling": sampling, **more})
    assert isinstance(opened, messages.Opened), opened
    return stream.sessions[name]


def send_draft(stream: DeviceStream, name: str, number: int = 1, **more: object) -> None:
    """Send a draft, which after round 1 needs a base of its own."""
    draft = {"session": name, "round": number, "base": len(PROMPT), "tokens": ANSWER[:2], **more}
    stream.receive(Up(draft=draft))


def verify(handler: FrameHandler, batches: int = 1000) -> list[VerifiedRound]:
    """Verify what waits, at most so many batches; return all rounds, whose answers wait at the streams."""
    verified: list[VerifiedRound] = []
    runner = handler.batch_runner

    def deliver(batch: list[VerifiedRound]) -> None:
        verified.extend(batch)
        handler.answer(batch)

    runner.deliver = deliver
    with torch.inference_mode():
        while runner.waiting and batches:
            runner._verify_next()
            batches -= 1
    return verified
