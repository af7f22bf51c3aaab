"""The client of a server under test: one request is one stream, whose events are stamped as they arrive."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.streams.address import ServerAddress
from specbench_kit.live.streams.base import Generation, ServerFacts, StreamDialect, dialects
from specbench_kit.live.streams.events import END, EventParser
from specbench_kit.live.streams.received import ReceivedStream

CONNECT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 20.0
"""The pause before a request is sent a second time, doubled before every further time; and the longest pause."""
BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed later."""
SHOWN = 200
"""Characters of a server's error text that a message repeats."""


class RequestFailedError(Exception):
    """A request got no whole answer; `unreachable` if the server took no connection at the last attempt."""

    def __init__(self, reason: str, attempts: int, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.attempts, self.unreachable = attempts, unreachable


class _AttemptFailedError(Exception):
    """One attempt failed; `final` if another attempt would fail as well."""

    def __init__(self, reason: str, *, final: bool = False, unreachable: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final, self.unreachable, self.wait_s = final, unreachable, wait_s


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may be silent, and how often a failed request is sent again."""

    timeout_s: float = 300.0
    retries: int = 2


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A whole answer: when its last attempt was sent, on the client's clock, its events, and the attempts."""

    sent_s: float
    received: ReceivedStream
    attempts: int


@dataclass
class StreamClient:
    """The connections to one server; used inside one event loop."""

    address: ServerAddress
    key: str = ""
    patience: Patience = Patience()
    ca_file: Path | None = None
    dialect: StreamDialect = field(init=False)

    def __post_init__(self) -> None:
        self.dialect = dialects.get(self.address.dialect)(self.address.model)
        self._http, self._retired = self._connect(), list[httpx.AsyncClient]()

    def _connect(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self.patience.timeout_s, connect=min(CONNECT_S, self.patience.timeout_s), pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(
            base_url=self.address.base, timeout=timeout, limits=limits, headers=headers, verify=self._certificates()
        )

    def _certificates(self) -> ssl.SSLContext | bool:
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise SkitError(f"--server-ca {self.ca_file} holds no certificates: {first_line(error)}") from error

    async def close(self) -> None:
        """Close the connections."""
        for http in (self._http, *self._retired):
            await http.aclose()

    async def facts(self) -> ServerFacts:
        """Return what the server says of itself; raise SkitError if it is not there or not of the named kind."""
        first, *others = self.dialect.facts_paths
        documents: list[JsonObject | None] = [await self._document(first)]
        for path in others:
            document: JsonObject | None = None
            with suppress(SkitError):
                document = await self._document(path)
            documents.append(document)
        try:
            return self.dialect.facts(*documents)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._refusal(f"{first} answered in an unknown form ({first_line(error)})") from error

    async def counters(self) -> str | None:
        """Return the text of the server's counters for Prometheus; None if it has none."""
        with suppress(httpx.HTTPError):
            response = await self._http.get("/metrics")
            return response.text if response.is_success else None
        return None

    async def ask(self, generation: Generation) -> SentRequest:
        """Return a whole answer, of the first attempt that brings one; raise RequestFailedError if none does."""
        body, wait_s = self.dialect.body(generation), FIRST_WAIT_S
        for attempt in range(1, self.patience.retries + 2):
            received, sent_s = ReceivedStream(), monotonic_s()
            try:
                await self._stream(body, received, sent_s)
            except _AttemptFailedError as failure:
                # A server that broke off may have closed this connection, or others, which would fail the next request.
                # The old ones are closed at the end only, since other requests may still be using them.
                self._retired.append(self._http)
                self._http = self._connect()
                if failure.final or attempt > self.patience.retries:
                    raise RequestFailedError(str(failure), attempt, failure.unreachable) from failure
                await asyncio.sleep(min(LONGEST_WAIT_S, max(wait_s, failure.wait_s)))
                wait_s *= 2
            else:
                return SentRequest(sent_s, received, attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _stream(self, body: JsonObject, received: ReceivedStream, sent_s: float) -> None:
        """Send the request and collect its events; raise _AttemptFailedError if the answer is not whole."""
        parser, has_ended = EventParser(), False
        try:
            async with self._http.stream("POST", self.dialect.path, json=body) as response:
                if not response.is_success:
                    raise await self._http_failure(response)
                async for content in response.aiter_bytes():
                    at_s = monotonic_s() - sent_s
                    for data in parser.feed(content):
                        has_ended = self._take(data, received, at_s) or has_ended
                for data in parser.end():
                    has_ended = self._take(data, received, monotonic_s() - sent_s) or has_ended
        except httpx.TransportError as error:
            unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _AttemptFailedError(self._words(error), unreachable=unreachable) from error
        if received.is_empty:
            raise _AttemptFailedError("the answer is empty: no token arrived")
        if not has_ended:
            raise _AttemptFailedError("the stream ended before the answer did")

    def _take(self, data: str, received: ReceivedStream, at_s: float) -> bool:
        """Add the event to the stream; return True if it is the last of the answer."""
        if data == END:
            return True
        try:
            event = self.dialect.read(data)
        except ValueError as error:
            kind = self.address.dialect
            raise _AttemptFailedError(f"an event is not in the form of {kind} ({error})", final=True) from error
        if event.error is not None:
            raise _AttemptFailedError(f"the server broke off: {self._cleaned(event.error)}")
        received.add(event, at_s)
        return event.finish_reason is not None

    async def _http_failure(self, response: httpx.Response) -> _AttemptFailedError:
        await response.aread()
        reason = f"{self.dialect.path} answered {response.status_code}: {self._error_text(response)}"
        after = response.headers.get("retry-after", "")
        return _AttemptFailedError(
            reason, final=response.status_code not in BUSY, wait_s=float(after) if after.isdigit() else 0.0
        )

    async def _document(self, path: str) -> JsonObject:
        try:
            response = await self._http.get(path)
        except httpx.TransportError as error:
            raise self._refusal(self._words(error)) from error
        if response.status_code in (401, 403):
            raise self._refusal(
                f"{path} answered {response.status_code}: set the environment variable SKIT_API_KEY to the right key"
            )
        try:
            document = parse(response.text) if response.is_success else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self._refusal(f"{path} answered {response.status_code}: {self._error_text(response)}")
        return document

    def _refusal(self, reason: str) -> SkitError:
        return SkitError(f"{self.address.name} ({self.address.base}): {reason}; is it a server of {self._kind}?")

    @property
    def _kind(self) -> str:
        return f"the kind {self.address.dialect}"

    def _error_text(self, response: httpx.Response) -> str:
        return self._cleaned(response.text) or response.reason_phrase

    def _cleaned(self, text: str) -> str:
        """Return a server's text as one short line without the key, which some servers repeat."""
        text = text.replace(self.key, "***") if self.key else text
        return one_line(text[:SHOWN].strip())

    def _words(self, error: httpx.TransportError) -> str:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return f"nothing arrived for {self.patience.timeout_s:g} s"
        return self._cleaned(first_line(error))
