"""The client of a server under test: one request is one stream, whose events are stamped as they arrive.

The server's own counters of speculation, which it gives to Prometheus, are read before and after a load.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Literal

import httpx

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.engines.address import ServerUnderTest
from specbench_kit.live.engines.base import Generation, ServerDialect, ServerFacts, StreamEvent, dialects
from specbench_kit.live.engines.http import (
    END,
    SHOWN,
    AsyncTransport,
    EventParser,
    certificates,
    proxy_of,
    without_secret,
)
from specbench_kit.metrics.ab.answers import Burst, CountedBy, DraftCounts, StreamedAnswer, divided

CONNECT_S = 10.0
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 20.0
"""The pause before a request is sent a second time, doubled before every further time; and the longest pause."""
BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed later."""
FINISHED_S = 1.0
DONE_S = 0.05
"""How long a body may stay open after the event that finishes an answer, for its usage; and after `[DONE]`."""
WHOLE = ("stop", "length", "eos", "eos_token", "end_turn", "stop_sequence", "max_tokens", "")
"""Reasons for which a whole answer ends; some servers name none."""


TOGETHER_S = 5e-4
"""Events that arrive within this time of each other are one burst: a server may send the tokens of one verification
one by one, and one read of the socket holds several events."""

TokenCounter = Callable[[str], int]
"""Returns the number of tokens of a text."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The new text of an event, the number of its new tokens if known, and when it arrived."""

    at_s: float
    text: str
    tokens: int | None


@dataclass
class ReceivedStream:
    """Collects the events of one answer; times are in seconds since the request was sent."""

    _arrivals: list[_Arrival] = field(default_factory=list)
    _text: str = ""
    _reply: str = ""
    _ids: list[int] | None = None
    _running_total: int = 0
    """The tokens that events have brought so far, where they say so."""
    _total: int | None = None
    _counted_by: CountedBy = "chunks"
    _prompt_tokens: int | None = None
    _cached_tokens: int | None = None
    _drafts: DraftCounts | None = None
    finish_reason: str = ""
    """Why the server says that the answer ended; empty if it does not say."""

    def add(self, event: StreamEvent, at_s: float) -> None:
        """Add an event that arrived at a time."""
        is_whole = event.cumulative and event.text.startswith(self._text)
        text = event.text[len(self._text) :] if is_whole else event.text
        tokens, counted_by = self._new_tokens(event)
        if text or tokens:
            self._arrivals.append(_Arrival(at_s, text, tokens))
            self._counted_by = counted_by
        self._text += text
        self._reply += text.removeprefix(event.reasoning)
        if event.token_ids is not None:
            self._ids = list(event.token_ids) if event.cumulative else [*(self._ids or ()), *event.token_ids]
        # Some servers state 0 tokens beside a text: they do not count.
        self._total = event.total_tokens or self._total
        self.finish_reason = event.finish_reason or self.finish_reason
        self._prompt_tokens = event.prompt_tokens if event.prompt_tokens is not None else self._prompt_tokens
        self._cached_tokens = event.cached_tokens if event.cached_tokens is not None else self._cached_tokens
        self._drafts = event.drafts or self._drafts

    def _new_tokens(self, event: StreamEvent) -> tuple[int | None, CountedBy]:
        """Return how many tokens an event brought, and by what they were counted."""
        if event.tokens is not None:
            self._running_total += event.tokens
            return event.tokens, event.counted_by
        # The last event may state the total of a stream whose other events stated nothing: that is no running count.
        if event.total_tokens is not None and (self._running_total or not self._arrivals) and event.total_tokens:
            new = event.total_tokens - self._running_total
            self._running_total = event.total_tokens
            return max(0, new), event.counted_by if event.cumulative else "running usage"
        return None, "chunks"

    @property
    def reply(self) -> str:
        """The answer as the next turn of a dialogue repeats it: without the model's reasoning."""
        return self._reply.strip()

    @property
    def is_empty(self) -> bool:
        """Return True if neither text nor the name of a token arrived, whatever the server counts."""
        return not (self._text or self._ids)

    def answer(self, count_tokens: TokenCounter | None = None) -> StreamedAnswer:
        """Return the answer; `count_tokens` is used where the server does not say how many tokens an event brought."""
        sizes: Sequence[int]
        if all(arrival.tokens is not None for arrival in self._arrivals):
            sizes = [arrival.tokens or 0 for arrival in self._arrivals]
            counted_by = self._counted_by
        elif count_tokens is not None:
            sizes = self._sizes_by_text(count_tokens)
            counted_by = "tokenizer"
        elif self._total == len(self._arrivals):
            sizes = [1] * len(self._arrivals)
            counted_by = "one per chunk"
        elif self._total is not None and self._total > len(self._arrivals):
            lengths = [max(1, len(arrival.text)) for arrival in self._arrivals]
            sizes = divided(self._total, lengths)
            counted_by = "usage at the end"
        elif self._total is not None:
            sizes = divided(self._total, [1] * len(self._arrivals))
            counted_by = "usage at the end"
        else:
            sizes = []
            counted_by = "chunks"
        if not any(sizes):
            sizes = [1] * len(self._arrivals)
            counted_by = "chunks"
        return StreamedAnswer(
            text=self._text,
            bursts=self._bursts(sizes),
            counted_by=counted_by,
            finish_reason=self.finish_reason,
            token_ids=self._ids if counted_by == "token ids" else None,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            drafts=self._drafts,
        )

    def _sizes_by_text(self, count_tokens: TokenCounter) -> list[int]:
        """Return the tokens that each event added to the tokenized text."""
        ends = [0]
        text = ""
        for arrival in self._arrivals:
            text += arrival.text
            # A piece of text may join with the one before it to fewer tokens; the count never goes back.
            ends.append(max(ends[-1], count_tokens(text)))
        return [after - before for before, after in pairwise(ends)]

    def _bursts(self, sizes: Sequence[int]) -> list[Burst]:
        bursts: list[Burst] = []
        for arrival, size in zip(self._arrivals, sizes, strict=True):
            if not size:
                continue
            if bursts and arrival.at_s - bursts[-1].at_s < TOGETHER_S:
                bursts[-1] = Burst(bursts[-1].at_s, bursts[-1].tokens + size)
            else:
                bursts.append(Burst(arrival.at_s, size))
        return bursts


SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)", re.MULTILINE)
FIRST = 'position="0"'
"""The label of the first drafted token in counts of accepted tokens by their position."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "rounds": (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts",
        "llamacpp:spec_decode_num_drafts_total",
    ),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "tgi_request_skipped_tokens_sum",
    ),
    "accepted_first": (
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    ),
}
"""The names of each count, by server and version; the first one that a server has counts."""


def read_counters(text: str | None) -> dict[str, float]:
    """Return the counts of speculation in a text of Prometheus, summed over labels; empty if there are none."""
    sums: dict[str, float] = {}
    for sample in SAMPLE.finditer(text or ""):
        if "per_pos" in sample["name"] and FIRST not in (sample["labels"] or ""):
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        if isfinite(value):
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + value
    values: dict[str, float] = {}
    for count, names in COUNTERS.items():
        values |= next(({count: sums[name]} for name in names if name in sums), {})
    return values


def have_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return True if a counter is lower than before, as after a server was started again."""
    return any(after[count] < before[count] for count in after if count in before)


def change(before: Mapping[str, float], after: Mapping[str, float]) -> DraftCounts | None:
    """Return how far the counters moved; None if nothing was drafted, or if one of them fell."""
    moved = {count: round(after[count] - before[count]) for count in after if count in before}
    if have_fallen(before, after) or not (moved.get("drafted") or moved.get("accepted")):
        return None
    return DraftCounts(**moved)


class RequestFailedError(Exception):
    """A request got no whole answer; `unreachable` if the server took no connection at the last attempt.

    `reasons` are those of all attempts but the last.
    """

    def __init__(self, reason: str, reasons: Sequence[str], unreachable: bool = False) -> None:
        super().__init__(reason)
        self.reasons = reasons
        self.unreachable = unreachable

    @property
    def attempts(self) -> int:
        """The number of times that the request was sent."""
        return len(self.reasons) + 1


class _NoDocumentError(SkitError):
    """A server does not describe itself."""


class _AttemptFailedError(Exception):
    """One attempt failed; `final` if another attempt would fail as well."""

    def __init__(self, reason: str, *, final: bool = False, unreachable: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.unreachable = unreachable
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may be silent, and how often a failed request is sent again."""

    timeout_s: float = 300.0
    retries: int = 2


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A whole answer: when its last attempt was sent, on the client's clock, its events, and why others failed."""

    sent_s: float
    received: ReceivedStream
    reasons: Sequence[str] = ()

    @property
    def attempts(self) -> int:
        """The number of times that the request was sent."""
        return len(self.reasons) + 1


@dataclass
class StreamClient:
    """The connections to one server; used inside one event loop."""

    address: ServerUnderTest
    key: str = ""
    patience: Patience = Patience()
    ca_file: Path | None = None
    dialect: ServerDialect = field(init=False)

    def __post_init__(self) -> None:
        self.dialect = dialects.get(self.address.dialect)()
        self.dialect.model_name = self.address.model
        proxy = proxy_of(self.address.base)
        verify = certificates(self.address.base, self.ca_file)
        self._way = f" (through the proxy that {proxy.variable} names)" if proxy else ""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._connections = AsyncTransport(
            lambda: httpx.AsyncHTTPTransport(verify=verify, limits=limits, proxy=proxy.url if proxy else None)
        )
        self._http = httpx.AsyncClient(
            base_url=self.address.base,
            timeout=httpx.Timeout(self.patience.timeout_s, connect=min(CONNECT_S, self.patience.timeout_s), pool=None),
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            transport=self._connections,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def facts(self) -> ServerFacts:
        """Return what the server says of itself; raise SkitError if it is not there or not of the named kind.

        Gateways that describe no model are taken as they are if the address names the model.
        """
        first, *others = self.dialect.facts_paths
        try:
            documents: list[JsonObject | None] = [await self._document(first)]
        except _NoDocumentError as error:
            if not self.address.model:
                advice = f"; if it describes no models, name yours: {self.address.name}={self.address.shown}#MODEL"
                raise SkitError(f"{error}{advice if 'models' in first else ''}") from error
            return ServerFacts()
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
        body = self.dialect.body(generation)
        wait_s = FIRST_WAIT_S
        reasons: list[str] = []
        while True:
            received = ReceivedStream()
            sent_s = monotonic_s()
            try:
                await self._stream(body, received, sent_s)
            except _AttemptFailedError as failure:
                # A server that broke off may have closed this connection, or others, which would fail the next request.
                self._connections.renew()
                reason = self._cleaned(str(failure))
                if failure.final or len(reasons) == self.patience.retries:
                    raise RequestFailedError(reason, reasons, failure.unreachable) from failure
                reasons.append(reason)
                await asyncio.sleep(min(LONGEST_WAIT_S, max(wait_s, failure.wait_s)))
                wait_s *= 2
            else:
                return SentRequest(sent_s, received, reasons)

    async def _stream(self, body: JsonObject, received: ReceivedStream, sent_s: float) -> None:
        """Send the request and collect its events; raise _AttemptFailedError if the answer is not whole."""
        parser = EventParser()
        state = "open"
        clock = asyncio.get_running_loop().time
        try:
            # Bodies stay open after the answer's end at some servers: then it is what has arrived.
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(None) as limit,
                    self._http.stream("POST", self.dialect.path, json=body) as response,
                ):
                    if not response.is_success:
                        raise await self._http_failure(response)
                    async for content in response.aiter_bytes():
                        at_s = monotonic_s() - sent_s
                        for data in parser.feed(content):
                            state = self._take(data, received, at_s) or state
                        if state != "open":
                            limit.reschedule(clock() + (DONE_S if state == "done" else FINISHED_S))
                    for data in parser.end():
                        state = self._take(data, received, monotonic_s() - sent_s) or state
        except httpx.TransportError as error:
            unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _AttemptFailedError(self._words(error) + self._way, unreachable=unreachable) from error
        if received.finish_reason not in WHOLE:
            raise _AttemptFailedError(f"the server gave the answer up: {received.finish_reason}")
        if received.is_empty:
            raise _AttemptFailedError(f"the answer is empty: no token arrived{parser.said_instead()}")
        if state == "open":
            raise _AttemptFailedError("the stream ended before the answer did")

    def _take(self, data: str, received: ReceivedStream, at_s: float) -> Literal["", "finished", "done"]:
        """Add the event to the stream; return what it ends: the answer alone, whose usage may follow, or everything."""
        if data == END:
            return "done"
        try:
            event = self.dialect.read(data)
        except ValueError as error:
            kind = self.address.dialect
            raise _AttemptFailedError(f"an event is not in the form of {kind} ({error})", final=True) from error
        if event.error is not None:
            raise _AttemptFailedError(f"the server broke off: {event.error}")
        received.add(event, at_s)
        return "finished" if event.finish_reason is not None else ""

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
            raise self._refusal(self._words(error) + self._way) from error
        if response.status_code in (401, 403) and not self.address.model:
            raise self._refusal(
                f"{path} answered {response.status_code}: set the environment variable SKIT_API_KEY to the right key"
            )
        try:
            document = parse(response.text) if response.is_success else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise _NoDocumentError(
                str(self._refusal(f"{path} answered {response.status_code}: {self._error_text(response)}{self._way}"))
            )
        return document

    def _refusal(self, reason: str) -> SkitError:
        text = self._cleaned(reason)
        return SkitError(f"{self.address.name} ({self.address.base}): {text}; is it a server of {self._kind}?")

    @property
    def _kind(self) -> str:
        return f"the kind {self.address.dialect}"

    def _error_text(self, response: httpx.Response) -> str:
        return without_secret(response.text, self.key)[:SHOWN].strip() or response.reason_phrase

    def _cleaned(self, text: str) -> str:
        """Return a text as one line without the key, which some servers repeat."""
        return one_line(without_secret(text, self.key).strip())

    def _words(self, error: httpx.TransportError) -> str:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return f"nothing arrived for {self.patience.timeout_s:g} s"
        return first_line(error)
