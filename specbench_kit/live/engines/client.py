"""The client of a server under test: one request is one stream, whose events are stamped as they
arrive.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.core.typed_json import parse
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.engines.address import ServerUnderTest
from specbench_kit.live.engines.answers import BY_MODEL, WHOLE
from specbench_kit.live.engines.base import (
    Generation,
    ServerDialect,
    ServerDocument,
    ServerFacts,
    dialects,
)
from specbench_kit.live.engines.counters import ROUTES, read_counters
from specbench_kit.live.engines.event_reader import (
    END,
    ERROR,
    UNNAMED,
    ArrivedEvent,
    EventReader,
    error_words,
)
from specbench_kit.live.engines.http import AsyncTransport, certificates, proxy_of, speaks_grpc
from specbench_kit.live.engines.received import ReceivedStream
from specbench_kit.live.engines.redirects import RedirectedError, Route
from specbench_kit.live.engines.request_fields import (
    RequestBody,
    field_names,
    named_in,
    with_newer_names,
    without_fields,
)
from specbench_kit.live.engines.wording import shown_words, without_secret

CONNECT_S = 10.0
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 20.0
"""The pause before a request is sent a second time, doubled before every further time; and the
longest pause.
"""
BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed later."""
NO_ROUTE = (404, 405, 501)
"""Answers of a server that has no such route, or no such model."""
START = "start the server, or give another address"
SHOWN_MODELS = 5
"""Most models of a server that a message names."""
FINISHED_S = 1.0
DONE_S = 0.05
"""How long a body may stay open after the event that finishes an answer, for its usage; and after
`[DONE]`.
"""
StreamState = Literal["open", "finished", "done"]
"""Whether an answer goes on, has ended, so that only its counts may follow, or the whole stream
has.
"""


class RequestFailedError(Exception):
    """A request got no whole answer; `unreachable` if the server took no connection at the last
    attempt.

    `reasons` are those of all attempts but the last. `status` is that of the last answer; it is None if there was none,
    or if a refusal came in the place of a stream. `advice` is what the refusal itself shows to do.
    """

    def __init__(
        self,
        reason: str,
        reasons: Sequence[str],
        unreachable: bool = False,
        status: int | None = None,
        advice: str = "",
    ) -> None:
        super().__init__(f"{reason}{advice}")
        self.reasons = reasons
        self.advice = advice
        self.unreachable = unreachable
        self.status = status

    @property
    def attempts(self) -> int:
        """The number of times that the request was sent."""
        return len(self.reasons) + 1


class _NoDocumentError(SkitError):
    """A server does not describe itself."""


class _AttemptFailedError(Exception):
    """One attempt failed; `final` if another attempt would fail as well.

    `ended_at_once` if the answer is empty because the model chose its end as the first token.
    """

    def __init__(
        self,
        reason: str,
        *,
        final: bool = False,
        unreachable: bool = False,
        wait_s: float = 0.0,
        status: int | None = None,
        ended_at_once: bool = False,
    ) -> None:
        super().__init__(reason)
        self.ended_at_once = ended_at_once
        self.final = final
        self.unreachable = unreachable
        self.wait_s = wait_s
        self.status = status


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may be silent, and how often a failed request is sent again."""

    timeout_s: float = 300.0
    retries: int = 2


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A whole answer: when its last attempt was sent, on the client's clock, its events, and why
    others failed.
    """

    sent_s: float
    received: ReceivedStream
    reasons: Sequence[str] = ()

    @property
    def attempts(self) -> int:
        """The number of times that the request was sent."""
        return len(self.reasons) + 1


@dataclass
class StreamClient:
    """The connections to one server; used inside one event loop.

    `left_out` names fields that no request has. `clock` and `transport` are those of this machine; others stand in for
    them where a test says what arrives when.
    """

    address: ServerUnderTest
    key: str = ""
    patience: Patience = Patience()
    ca_file: Path | None = None
    left_out: Collection[str] = ()
    clock: Callable[[], float] = monotonic_s
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None
    dialect: ServerDialect = field(init=False)
    newer_names: dict[str, str] = field(default_factory=dict, init=False)
    """The fields that are sent under their newer names, because the server refuses the older
    ones.
    """

    def __post_init__(self) -> None:
        self.dialect = dialects.get(self.address.dialect)()
        self.dialect.model_name = self.address.model
        proxy = proxy_of(self.address.base)
        verify = certificates(self.address.base, self.ca_file)
        self._way = f" (through the proxy that {proxy.variable} names)" if proxy else ""
        self._moved = dict[str, httpx.URL]()
        self._counters_route: str | None = None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._connections = AsyncTransport(
            self.transport
            or (
                lambda: httpx.AsyncHTTPTransport(
                    verify=verify, limits=limits, proxy=proxy.url if proxy else None
                )
            )
        )
        # A compressed stream would be held back until a block of it is full.
        headers = {
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        self._http = httpx.AsyncClient(
            base_url=self.address.base,
            timeout=httpx.Timeout(
                self.patience.timeout_s, connect=min(CONNECT_S, self.patience.timeout_s), pool=None
            ),
            headers=headers,
            transport=self._connections,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def facts(self) -> ServerFacts:
        """Return what the server says of itself; raise SkitError if it is not there or not of the
        named kind.

        Gateways that describe no model are taken as they are if the address names the model.
        """
        first, *others = self.dialect.facts_paths
        try:
            documents: list[ServerDocument | None] = [await self._document(first)]
        except _NoDocumentError as error:
            if not self.address.model:
                yours = f"{self.address.name}={self.address.shown}#MODEL"
                advice = f" If it describes no models, name yours: {yours}"
                raise SkitError(f"{error}{advice if 'models' in first else ''}") from error
            return ServerFacts()
        for path in others:
            document: ServerDocument | None = None
            with suppress(SkitError):
                document = await self._document(path)
            documents.append(document)
        try:
            return self.dialect.facts(*documents)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._refusal(
                f"{first} answered in an unknown form ({first_line(error)})"
            ) from error

    async def counters(self) -> dict[str, float]:
        """Return the server's counters of speculation; empty if it has none."""
        return read_counters(await self.counters_page())

    async def counters_page(self) -> str:
        """Return the page of the server's counters; empty if it has none of speculation."""
        for route in ROUTES if self._counters_route is None else (self._counters_route,):
            with suppress(httpx.RequestError, RedirectedError):
                async with self._opened("GET", route) as response:
                    text = (await response.aread()).decode("utf-8", "replace")
                if response.is_success and read_counters(text):
                    self._counters_route = route
                    return text
        return ""

    def fields(self, generation: Generation) -> list[str]:
        """Return the names of the fields of a request that may be left out."""
        return list(field_names(self.dialect.body(generation)))

    async def ask(self, generation: Generation) -> SentRequest:
        """Return a whole answer, of the first attempt that brings one; raise RequestFailedError if
        none does.
        """
        wait_s = FIRST_WAIT_S
        reasons: list[str] = []
        refusal = ""
        while True:
            body = self.body(generation)
            received = ReceivedStream()
            sent_s = self.clock()
            try:
                await self._stream(body, received, sent_s)
            except _AttemptFailedError as failure:
                # A server that broke off may have closed this connection, or others, which would
                # fail the next request.
                self._connections.renew()
                reason = self._cleaned(str(failure))
                if failure.final and not refusal and self._takes_newer_names(reason, body):
                    refusal = reason
                    continue
                if failure.final or len(reasons) == self.patience.retries:
                    if refusal:
                        self.newer_names.clear()
                        body, reason = self.body(generation), refusal
                    advice = (
                        self._template_advice()
                        if failure.ended_at_once
                        else self._advice(reason, body)
                    )
                    raise RequestFailedError(
                        reason, reasons, failure.unreachable, failure.status, advice
                    ) from failure
                reasons.append(reason)
                await asyncio.sleep(min(LONGEST_WAIT_S, max(wait_s, failure.wait_s)))
                wait_s *= 2
            else:
                return SentRequest(sent_s, received, reasons)

    async def way_out(self, failure: RequestFailedError) -> str:
        """Return what to do about a request that every server of the kind should answer, by how it
        failed.
        """
        address = self.address
        status = failure.status
        if failure.advice:
            return ""
        if status in (401, 403):
            return "set the environment variable SKIT_API_KEY to the right key"
        if status is not None and status not in NO_ROUTE:
            return (
                "the log of the server may say more"
                if status >= httpx.codes.INTERNAL_SERVER_ERROR
                else ""
            )
        if failure.unreachable:
            return START
        models = await self._models()
        if address.model and models and address.model not in models:
            served = ", ".join(models[:SHOWN_MODELS]) + (
                ", ..." if len(models) > SHOWN_MODELS else ""
            )
            return f"the model {address.model} is none of those that it lists: name one of {served} after #"
        others = ", ".join(kind for kind in dialects.all() if kind != address.dialect)
        return (
            f"is it a server of {self._kind}? Its requests go to {address.base}{self.dialect.path}: give another path, "
            f"or another kind of {others}"
        )

    async def _models(self) -> list[str]:
        """Return the names of the models that a server with OpenAI's routes lists; none if it lists
        none.
        """
        with suppress(SkitError, KeyError, TypeError, AttributeError):
            return [str(card["id"]) for card in (await self._document("/v1/models"))["data"]]
        return []

    def body(self, generation: Generation) -> RequestBody:
        """Return the JSON body of a request."""
        body = {**self.dialect.body(generation), **generation.added}
        return with_newer_names(without_fields(body, self.left_out), self.newer_names)

    def _takes_newer_names(self, reason: str, body: RequestBody) -> bool:
        """Send fields that a server refuses under their newer names from now on; return False if
        there are none.
        """
        refused = named_in(reason, [name for name in self.dialect.newer_names if name in body])
        self.newer_names |= {name: self.dialect.newer_names[name] for name in refused}
        return bool(refused)

    def _advice(self, reason: str, body: RequestBody) -> str:
        """Return how to leave out the fields that a server's refusal names."""
        named = named_in(reason.partition(": ")[2], list(field_names(body)))
        return f"; to ask without: --leave-out {' --leave-out '.join(named)}" if named else ""

    def _template_advice(self) -> str:
        """Return what to do where the model ends its answer before it begins."""
        if self.dialect.applies_chat_template:
            return "; does the chat template of the server belong to its model?"
        kinds = [kind for kind, dialect in dialects.all().items() if dialect.applies_chat_template]
        kinds = [kind for kind in kinds if kind.startswith(f"{self.address.dialect}-")] or kinds
        return (
            f"; an instruct model does so where it continues a raw text, as {self.address.dialect} lets it: to ask in "
            f"its chat template give the kind {' or '.join(kinds)}"
        )

    async def _stream(self, body: RequestBody, received: ReceivedStream, sent_s: float) -> None:
        """Send the request and collect its events; raise _AttemptFailedError if the answer is not
        whole.
        """
        state: StreamState = "open"
        said_instead = ""
        clock = asyncio.get_running_loop().time
        try:
            # Bodies stay open after the answer's end at some servers: then it is what has arrived.
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(None) as limit,
                    self._opened("POST", self.dialect.path, body) as response,
                ):
                    if not response.is_success:
                        raise await self._http_failure(response)
                    reader = EventReader(response, self.clock)
                    async with aclosing(reader.arriving()) as events:
                        async for event in events:
                            ended = self._take(event, received, event.at_s - sent_s)
                            if ended is not None:
                                state = ended
                                limit.reschedule(
                                    clock() + (DONE_S if state == "done" else FINISHED_S)
                                )
                    said_instead = reader.said_instead(self.key)
        except RedirectedError as error:
            raise _AttemptFailedError(
                f"{self.dialect.path} {error}{self._way}", final=True
            ) from error
        except httpx.RequestError as error:
            # What breaks after the answer has ended takes nothing from it.
            if state == "open":
                unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                raise _AttemptFailedError(
                    self._words(error) + self._way, unreachable=unreachable
                ) from error
        if received.finish_reason.lower() not in WHOLE:
            raise _AttemptFailedError(f"the server gave the answer up: {received.finish_reason}")
        # A server that counts more tokens than the end did not send them, whatever the model did.
        if (
            received.is_empty
            and received.finish_reason.lower() in BY_MODEL
            and received.counted_tokens <= 1
        ):
            raise _AttemptFailedError(
                f"the answer is empty: no token arrived, as the model ended at once ({received.finish_reason})",
                ended_at_once=True,
            )
        if received.is_empty:
            raise _AttemptFailedError(f"the answer is empty: no token arrived{said_instead}")
        if state == "open":
            raise _AttemptFailedError(f"the stream ended before the answer did{said_instead}")

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, body: RequestBody | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Yield the response to a request, of the address to which redirects within the host
        lead.
        """
        route = Route(path, self._moved)
        while True:
            async with self._http.stream(method, route.address, json=body) as response:
                if not route.is_redirected(response):
                    yield response
                    return

    def _take(
        self, event: ArrivedEvent, received: ReceivedStream, at_s: float
    ) -> StreamState | None:
        """Add an event to the answer; return what has ended with it, or None if nothing has changed
        in that.
        """
        if event.data == END:
            return "done"
        if event.name == ERROR:
            raise _AttemptFailedError(
                f"the server broke off: {shown_words(error_words(event.data), self.key)}"
            )
        try:
            read = self.dialect.read(event.data)
        except ValueError as error:
            if event.name != UNNAMED:
                return None  # an event of a name of its own, for other clients
            is_run_together = "\n" in event.data
            if event.is_cut and not is_run_together:
                raise _AttemptFailedError("the stream ended within an event") from error
            advice = "; are its events separated by empty lines?" if is_run_together else ""
            words = f"an event is not in the form of {self.address.dialect} ({error}{advice})"
            raise _AttemptFailedError(words, final=True) from error
        if read.error is not None:
            raise _AttemptFailedError(f"the server broke off: {read.error}")
        has_ended = bool(received.finish_reason)
        brings = received.add(read, at_s)
        # Some servers name an empty reason in every event, and some send a further part of an
        # answer after its reason.
        return "finished" if read.finish_reason or (brings and has_ended) else None

    async def _http_failure(self, response: httpx.Response) -> _AttemptFailedError:
        await response.aread()
        reason = (
            f"{self.dialect.path} answered {response.status_code}: {self._error_text(response)}"
        )
        after = response.headers.get("retry-after", "")
        return _AttemptFailedError(
            reason,
            final=response.status_code not in BUSY,
            wait_s=float(after) if after.isdigit() else 0.0,
            status=response.status_code,
        )

    async def _document(self, path: str) -> ServerDocument:
        try:
            async with self._opened("GET", path) as response:
                content = await response.aread()
        except RedirectedError as error:
            raise self._refusal(f"{path} {error}{self._way}") from error
        except httpx.RequestError as error:
            words = self._words(error) + self._way
            if isinstance(error, httpx.RemoteProtocolError) and await speaks_grpc(
                self.address.base
            ):
                raise SkitError(f"{self._place}: {self._skit_serve}") from error
            if _listens(error):
                raise self._refusal(words) from error
            raise SkitError(f"{self._place}: {self._cleaned(words)}; {START}") from error
        if response.status_code in (401, 403) and not self.address.model:
            raise self._refusal(
                f"{path} answered {response.status_code}: set the environment variable SKIT_API_KEY to the right key"
            )
        try:
            document = parse(content) if response.is_success else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise _NoDocumentError(
                str(
                    self._refusal(
                        f"{path} answered {response.status_code}: {self._error_text(response)}{self._way}"
                    )
                )
            )
        return document

    def _refusal(self, reason: str) -> SkitError:
        text = self._cleaned(reason)
        return SkitError(f"{self._place}: {text}; is it a server of {self._kind}?")

    @property
    def _skit_serve(self) -> str:
        """What a server is that speaks gRPC, and how to measure it."""
        return (
            "it speaks gRPC, as skit serve does, which verifies drafts and takes no prompts: measure it with skit "
            f"bench --server {self._http.base_url.netloc.decode()}"
        )

    @property
    def _place(self) -> str:
        return f"{self.address.name} ({self.address.base})"

    @property
    def _kind(self) -> str:
        return f"the kind {self.address.dialect}"

    def _error_text(self, response: httpx.Response) -> str:
        return shown_words(response.text, self.key) or response.reason_phrase

    def _cleaned(self, text: str) -> str:
        """Return a text as one line without the key, which some servers repeat."""
        return one_line(without_secret(text, self.key).strip())

    def _words(self, error: httpx.RequestError) -> str:
        if isinstance(error, httpx.TimeoutException) and not isinstance(
            error, httpx.ConnectTimeout
        ):
            return f"nothing arrived for {self.patience.timeout_s:g} s"
        return first_line(error)


def _listens(error: httpx.RequestError) -> bool:
    """Return False if nothing takes a connection; True for a server that does, even if TLS fails
    there.
    """
    if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
