"""The server-sent events of a response, each with the time at which its last byte arrived.

`httpx_sse` reads lines, fields and comments as the specification of server-sent events has them. Around it is what the
specification asks of the bytes (a byte order mark is ignored, and a lone CR ends a line at once) and what servers do
beside it: other content types, a last event without its empty line, and errors in the place of events.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import NamedTuple

import httpx
from httpx_sse import EventSource, ServerSentEvent

from specbench_kit.core.typed_json import parse
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.engines.wording import shown_words

END = "[DONE]"
"""The data with which OpenAI's streams end."""
UNNAMED = "message"
"""The name of an event to which its server gives none."""
ERROR = "error"
"""The name of an event that reports an error."""
KEPT = 2000
"""Bytes at the beginning and at the end of a stream that are kept for messages."""
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8-sig"}
"""How the content is read, whatever its server calls it: as events in UTF-8, without a byte order
mark before them.
"""
FIELD_OF_EVENT = re.compile(r"^(data|event|id|retry|)(:|$)", re.MULTILINE)


class ArrivedEvent(NamedTuple):
    """The name and the data of an event, and when it arrived; `is_cut` if the stream ended before
    the event did.
    """

    name: str
    data: str
    at_s: float
    is_cut: bool = False


class EventReader:
    """Reads the events of a response once, in a loop or in an asynchronous one."""

    def __init__(self, response: httpx.Response, clock: Callable[[], float] = monotonic_s) -> None:
        self._content = _Content(response, clock)
        self._source = EventSource(
            httpx.Response(httpx.codes.OK, headers=HEADERS, stream=self._content)
        )
        self._has_events = False

    def __iter__(self) -> Iterator[ArrivedEvent]:
        for event in self._source.iter_sse():
            yield from self._arrived(event)

    async def arriving(self) -> AsyncGenerator[ArrivedEvent, None]:
        """Yield the events as they arrive."""
        async with aclosing(self._source.aiter_sse()) as events:
            async for event in events:
                for arrived in self._arrived(event):
                    yield arrived

    def _arrived(self, event: ServerSentEvent) -> Iterator[ArrivedEvent]:
        data = event.data.strip()
        # An event without data keeps a connection alive, or sets the time of reconnections.
        if data:
            self._has_events = True
            yield ArrivedEvent(event.event, data, self._content.at_s, self._content.is_over)

    def said_instead(self, secret: str) -> str:
        """Return what a server said that was no event: why it does not stream, or why it stopped;
        empty if nothing.
        """
        blocks = _without_events(self._content.tail if self._has_events else self._content.head)
        if not blocks:
            return ""
        text = shown_words(error_words(blocks[-1] if self._has_events else blocks[0]), secret)
        return f"{'' if self._has_events else ', and no event'}; the server said: {text}"


class _Content(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The content of a response with LF for every end of a line, whose last part is followed by an
    empty line.
    """

    def __init__(self, response: httpx.Response, clock: Callable[[], float]) -> None:
        self._response = response
        self._clock = clock
        self._ended_in_cr = False
        self._head = b""
        self._tail = b""
        self.at_s = 0.0
        """When the part arrived that was read last."""
        self.is_over = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self._response.iter_bytes():
            yield self._read(part)
        yield self._end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._response.aiter_bytes():
            yield self._read(part)
        yield self._end()

    @property
    def head(self) -> str:
        """The beginning of the content."""
        return self._head.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The end of the content, from a whole block of lines on."""
        text = self._tail.decode("utf-8", "replace")
        return text.partition("\n\n")[2] if len(self._tail) == KEPT else text

    def _read(self, part: bytes) -> bytes:
        self.at_s = self._clock()
        # A CR ends its line at once. The LF that may follow it, perhaps in the next part, ends no
        # line of its own.
        if self._ended_in_cr:
            part = part.removeprefix(b"\n")
        self._ended_in_cr = part.endswith(b"\r")
        lines = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._head = (self._head + lines)[:KEPT] if len(self._head) < KEPT else self._head
        self._tail = (self._tail + lines)[-KEPT:]
        return lines

    def _end(self) -> bytes:
        self.is_over = True
        return b"\n\n"


def _without_events(text: str) -> list[str]:
    """Return the blocks of lines that hold no field of an event and no comment."""
    blocks = (block.strip("\n") for block in text.split("\n\n"))
    return [block for block in blocks if block.strip() and not FIELD_OF_EVENT.search(block)]


def error_words(text: str) -> str:
    """Return the message of an error in JSON, and any other text as it is."""
    # Some servers report an error in the middle of a stream by a line of its own name.
    text = text.strip().removeprefix(f"{ERROR}:").strip()
    with suppress(ValueError, AttributeError):
        document = parse(text)
        error = document.get(ERROR, document)
        message = error.get("message") if isinstance(error, dict) else error
        text = message if isinstance(message, str) and message else text
    return text
