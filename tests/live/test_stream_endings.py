"""How responses end on real sockets: with trailers, without their last chunk, by closing, and byte by byte."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from http_servers import POLL_S
from scripted_streams import GENERATION, chat

from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.client import (
    Patience,
    RequestFailedError,
    SentRequest,
    StreamClient,
)

EVENTS = [part for _, part in chat((0.0, {"content": "a"}), (0.0, {"content": "b"}), usage=2)]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Tokens\r\n\r\n"
CLOSED = b"HTTP/1.0 200 OK\r\n\r\n"


class RawServer(ThreadingTCPServer):
    """Answers each request with some bytes, and closes the connection."""

    daemon_threads = True

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self.requests = 0
        super().__init__(("127.0.0.1", 0), RawHandler)


class RawHandler(StreamRequestHandler):
    server: RawServer

    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.rfile.read(length)
        self.server.requests += 1
        for part in self.server.parts:
            self.wfile.write(part)
            self.wfile.flush()


@contextmanager
def serving(parts: Sequence[bytes]) -> Iterator[RawServer]:
    with RawServer(parts) as server:
        thread = Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: RawServer, retries: int = 0) -> SentRequest:
    async def asked() -> SentRequest:
        address = parse_server(f"it=chat://127.0.0.1:{server.server_address[1]}")
        client = StreamClient(address, patience=Patience(retries=retries))
        try:
            return await client.ask(GENERATION)
        finally:
            await client.close()

    return asyncio.run(asked())


def chunks(events: Sequence[bytes]) -> list[bytes]:
    return [f"{len(event):x}\r\n".encode() + event + b"\r\n" for event in events]


WHOLE = {
    "with a trailer": [CHUNKED, *chunks(EVENTS), b"0\r\nX-Tokens: 2\r\n\r\n"],
    "without the last chunk": [CHUNKED, *chunks(EVENTS)],
    "without the last chunk and [DONE]": [CHUNKED, *chunks(EVENTS[:-1])],
    "by closing": [CLOSED, *EVENTS],
    "by closing, with the last line open": [CLOSED, *EVENTS[:-1], EVENTS[-1].strip()],
    "byte by byte": [CLOSED, *(bytes([byte]) for event in EVENTS for byte in event)],
    "in chunks of a byte": [
        CHUNKED,
        *chunks([bytes([byte]) for byte in b"".join(EVENTS)]),
        b"0\r\n\r\n",
    ],
}


@pytest.mark.parametrize("ending", WHOLE)
def test_an_answer_is_whole_however_its_response_ends(ending: str) -> None:
    with serving(WHOLE[ending]) as server:
        sent = ask(server)
    answer = sent.received.answer()
    assert (answer.text, answer.tokens, answer.finish_reason, sent.attempts) == ("ab", 2, "stop", 1)


BROKEN = {
    "a chunk that is missing": ([CHUNKED, *chunks(EVENTS[:2])], "peer closed connection"),
    "an event that is cut": (
        [CLOSED, EVENTS[0], EVENTS[1][:20]],
        "the stream ended within an event",
    ),
    "an answer that is cut": ([CLOSED, *EVENTS[:2]], "the stream ended before the answer did"),
}


@pytest.mark.parametrize("ending", BROKEN)
def test_an_answer_that_is_cut_is_asked_for_again(ending: str) -> None:
    parts, words = BROKEN[ending]
    with serving(parts) as server, pytest.raises(RequestFailedError, match=words) as failed:
        ask(server, retries=1)
    assert (server.requests, failed.value.attempts) == (2, 2)
