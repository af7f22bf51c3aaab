"""Streams of which a test says what arrives when: stand-ins for network and clock, so that nothing waits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.base import Generation
from specbench_kit.live.engines.client import Patience, SentRequest, StreamClient

Part = tuple[float, bytes]
"""When some bytes arrive, in seconds since the request was sent, and the bytes."""
ONCE = Patience(retries=0)
GENERATION = Generation("a prompt", 64, Sampler(), 0, "a")


class ScriptedServer(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
    """Answers every request with the same parts, each of which sets the clock to its time."""

    def __init__(self, parts: Sequence[Part], breaks: bool = False, **headers: str) -> None:
        self._parts = parts
        self._breaks = breaks
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.now_s = 0.0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.now_s = 0.0
        return httpx.Response(200, headers=self._headers, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at_s, part in self._parts:
            self.now_s = at_s
            # What the client waits for until now, and no longer, ends here: its timer runs after the first pause.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield part
        if self._breaks:
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body"
            )

    def clock(self) -> float:
        return self.now_s

    def ask(self, kind: str) -> SentRequest:
        """Return the answer that a client of a kind of server reads."""
        with asyncio.Runner(loop_factory=lambda: ScriptedLoop(self.clock)) as runner:
            return runner.run(self._asked(kind))

    async def _asked(self, kind: str) -> SentRequest:
        address = parse_server(f"it={kind}://server:1")
        client = StreamClient(address, patience=ONCE, clock=self.clock, transport=lambda: self)
        try:
            return await client.ask(GENERATION)
        finally:
            await client.close()


class ScriptedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a server's, so that what waits for a second ends with the first part after it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return self._clock()


def sse(document: object) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document)
    return f"data: {text}\n\n".encode()


def answer(parts: Sequence[Part], kind: str = "chat", **options: Any) -> SentRequest:
    """Return the answer that a client of a kind of server reads from parts that arrive at their times."""
    return ScriptedServer(parts, **options).ask(kind)


def chat(
    *deltas: tuple[float, dict[str, Any]],
    usage: int | None = None,
    change: Callable[[Any], Any] | None = None,
) -> list[Part]:
    """Return the parts of a chat: deltas at their times, then its reason, its usage and its end half a second later."""
    last_s = deltas[-1][0] + 0.5
    documents: list[tuple[float, dict[str, Any]]] = [
        (at_s, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for at_s, delta in deltas
    ]
    documents.append((last_s, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    if usage is not None:
        documents.append((last_s, {"choices": [], "usage": {"completion_tokens": usage}}))
    changed = [(at_s, change(document) if change else document) for at_s, document in documents]
    return [*((at_s, sse(document)) for at_s, document in changed), (last_s, sse("[DONE]"))]
