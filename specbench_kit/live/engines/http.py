"""HTTP to inference servers of others: the environment's keys and proxies, stale connections,
streamed events, errors.

A link may be emulated in front of a server: requests and answers then arrive as late as they would
over it.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from pathlib import Path
from queue import SimpleQueue
from ssl import SSLContext, SSLError, create_default_context
from threading import Event, Lock, Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from specbench_kit.core.addresses import is_loopback
from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line, one_line
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.emulated_link import LinkDirection
from specbench_kit.live.engines.event_reader import END, EventReader
from specbench_kit.live.engines.redirects import RedirectedError, Route
from specbench_kit.live.engines.request_fields import RequestBody
from specbench_kit.live.engines.wording import shown_words, without_secret
from specbench_kit.runs.deployment import Link

API_KEY = "SKIT_API_KEY"
"""The environment variable of the key of every server; that of one server has its name at the
end.
"""
SOCKS = ("socks5", "socks5h")
STALE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""How a connection fails that the server closed while it was idle."""


class Proxy(NamedTuple):
    """A proxy, and the environment variable that names it."""

    url: str
    variable: str


class RefusedRequestError(SkitError):
    """The server answered a request with an error, such as for a route or a field that it does not
    have.
    """


def api_key(name: str = "") -> str:
    """Return the key of the server called `name` from the environment, without blanks around it;
    empty without one.

    Raise SkitError, which does not repeat it, for a key that no request can carry.
    """
    own = f"{API_KEY}_{variable_part(name)}"
    variable = own if name and os.environ.get(own) else API_KEY
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable():
        wrong = (
            "a line break or another control character"
            if key.isascii()
            else "a character that is not ASCII"
        )
        raise SkitError(
            f"the environment variable {variable} holds {wrong}, as no key does: set it to the key alone"
        )
    return key


def variable_part(name: str) -> str:
    """Return the part of an environment variable's name that stands for a server's name."""
    return re.sub(r"\W", "_", name).upper()


def proxy_of(base: str) -> Proxy | None:
    """Return the environment's proxy for a server; None if there is none, or if the server is on
    this machine.

    Raise SkitError with the name of the variable, and without its value, if that names no proxy
    that can be used.
    """
    address = urlsplit(base)
    if is_loopback(address.hostname or "") or _is_excepted(address.hostname or ""):
        return None
    for name in (f"{address.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if value := os.environ.get(variable, "").strip():
                return Proxy(_checked(value, variable), variable)
    return None


def _is_excepted(host: str) -> bool:
    """Return True if NO_PROXY names a host: itself, a domain that it is in, its network, or
    everything.
    """
    for entry in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(","):
        name = re.sub(r"(?<=[^:]):\d+$|\]:\d+$", "", entry.strip().lower()).strip("[]").lstrip("*.")
        if entry.strip() == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
        try:
            if name and ip_address(host) in ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False


def _checked(value: str, variable: str) -> str:
    """Return the address of a proxy with its scheme; raise SkitError, which does not repeat it, if
    it is none.
    """
    url = value if "://" in value else f"http://{value}"
    advice = "or except the server with NO_PROXY"
    kind = url.partition("://")[0].lower()
    if kind not in ("http", "https", *SOCKS):
        raise SkitError(
            f"the environment variable {variable} names a proxy of the kind {kind}://, and http://, https://, "
            f"socks5:// and socks5h:// are known: change it, {advice}"
        )
    try:
        is_valid = bool(httpx.URL(url).host) and (urlsplit(url).port or 1) > 0
    except (ValueError, httpx.InvalidURL):
        is_valid = False
    if not is_valid:
        raise SkitError(
            f"the environment variable {variable} names no proxy, such as http://host:3128: {advice[3:]}"
        )
    if kind in SOCKS and find_spec("socksio") is None:
        raise SkitError(
            f"the environment variable {variable} names a SOCKS proxy, which needs a package: pip install socksio, "
            f"{advice}"
        )
    return url


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 begins a connection with: the preface, and settings of which it changes
none.
"""
FRAME_HEAD = 9
FRAME_KIND, SETTINGS = 3, 4
"""The place of a frame's kind in its head, and the kind of the frame with which a server begins."""
PROBE_S = 3.0


async def speaks_grpc(base: str) -> bool:
    """Return True if a server without TLS speaks HTTP/2 from the first byte on, as those of gRPC
    do.
    """
    parts = urlsplit(base)
    if parts.scheme != "http":
        return False
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                writer.write(PREFACE)
                head = await reader.readexactly(FRAME_HEAD)
            finally:
                writer.close()
    except (OSError, EOFError):  # TimeoutError is an OSError
        return False
    return head[FRAME_KIND] == SETTINGS


def certificates(base: str, ca_file: Path | None = None) -> SSLContext | bool:
    """Return what a server's certificate is checked by: a file, or the usual roots; nothing is read
    for plain HTTP.
    """
    if not base.startswith("https://") and ca_file is None:
        return False
    try:
        # The roots of the environment, SSL_CERT_FILE and SSL_CERT_DIR, count if no file is named.
        return (
            create_default_context(cafile=str(ca_file)) if ca_file else httpx.create_ssl_context()
        )
    except (OSError, SSLError) as error:
        named = f"--server-ca {ca_file}" if ca_file else "the file that SSL_CERT_FILE names"
        raise SkitError(f"{named} holds no certificates: {first_line(error)}") from error


class Transport(httpx.BaseTransport):
    """Sends a request once more, over a new connection, if the server had closed the one that was
    kept from before.

    Servers close idle connections, and a client sees it only when it sends the next request.
    """

    def __init__(self, make: Callable[[], httpx.BaseTransport] = httpx.HTTPTransport) -> None:
        self._make = make
        self._current = make()
        self._retired = list[httpx.BaseTransport]()
        self._is_used = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        current = self._current
        is_used = self._is_used
        try:
            response = current.handle_request(request)
        except STALE:
            if not is_used:
                raise
            if current is self._current:
                self._retired.append(current)
                self._current = self._make()
                self._is_used = False
            response = self._current.handle_request(request)
        self._is_used = True
        return response

    def close(self) -> None:
        """Close the connections."""
        for transport in (self._current, *self._retired):
            transport.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    """`Transport` for asynchronous clients, which can also be told to open new connections."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._current = make()
        self._retired = list[httpx.AsyncBaseTransport]()
        self._is_used = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        current = self._current
        is_used = self._is_used
        try:
            response = await current.handle_async_request(request)
        except STALE:
            if not is_used:
                raise
            if current is self._current:
                self.renew()
            response = await self._current.handle_async_request(request)
        self._is_used = True
        return response

    def renew(self) -> None:
        """Use new connections from now on; the old ones are closed at the end, since requests may
        be using them.
        """
        self._retired.append(self._current)
        self._current = self._make()
        self._is_used = False

    async def aclose(self) -> None:
        """Close the connections."""
        for transport in (self._current, *self._retired):
            await transport.aclose()


class ServerClient:
    """The connections to one server, and what it answers; every error is one line, in which no key
    is.
    """

    def __init__(
        self,
        base: str,
        timeout_s: float,
        *,
        key: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        proxy = proxy_of(base) if transport is None else None
        verify = certificates(base)
        self._base = base
        self._key = key
        self._way = f" (through the proxy that {proxy.variable} names)" if proxy else ""
        self._moved = dict[str, httpx.URL]()
        self._http = httpx.Client(
            base_url=base,
            timeout=timeout_s,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            transport=transport
            or Transport(
                lambda: httpx.HTTPTransport(verify=verify, proxy=proxy.url if proxy else None)
            ),
        )

    def request(self, method: str, path: str, body: RequestBody | None = None) -> Any:
        """Return the JSON document that the server answers."""
        with (
            self._one_line_errors(path, "gave no answer"),
            self._opened(method, path, body) as response,
        ):
            response.read()
            response.raise_for_status()
            return response.json()

    def stream(self, path: str, body: RequestBody) -> Iterator[str]:
        """Yield the data of each event of a streamed answer as it arrives."""
        with self._one_line_errors(path, "broke off"), self._opened("POST", path, body) as response:
            if not response.is_success:
                response.read()
                response.raise_for_status()
            events = EventReader(response)
            for event in events:
                if event.data == END:
                    return
                yield event.data
            if said := events.said_instead(self._key):
                raise ValueError(f"no more came{said}")

    @contextmanager
    def _opened(self, method: str, path: str, body: RequestBody | None) -> Iterator[httpx.Response]:
        """Yield the response to a request, of the address to which redirects within the host
        lead.
        """
        route = Route(path, self._moved)
        while True:
            with self._http.stream(method, route.address, json=body) as response:
                if not route.is_redirected(response):
                    yield response
                    return

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @contextmanager
    def _one_line_errors(self, path: str, failure: str) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            text = shown_words(error.response.text, self._key) or error.response.reason_phrase
            line = f"answered {error.response.status_code}: {text}{self._way}"
            raise RefusedRequestError(self._line(path, line)) from error
        except RedirectedError as error:
            raise SkitError(self._line(path, f"{error}{self._way}")) from error
        except (httpx.HTTPError, ValueError) as error:
            raise SkitError(
                self._line(path, f"{failure}: {first_line(error)}{self._way}")
            ) from error

    def _line(self, path: str, text: str) -> str:
        return self.printable(f"{self._base}{path} {text}")

    def printable(self, text: str) -> str:
        """Return a text as one line without the key."""
        return one_line(without_secret(text, self._key))


Delivery = Callable[[], object]
"""What happens on arrival of a message."""


class ShapedTransport(httpx.BaseTransport):
    """Sends requests through an emulated link, whose bandwidth they share; bodies count, headers do
    not.
    """

    def __init__(self, link: Link) -> None:
        self._network = Transport()
        self._uplink = LinkDirection[Delivery](link, link.up_bytes_per_s, "up", _deliver)
        self._downlink = LinkDirection[Delivery](link, link.down_bytes_per_s, "down", _deliver)
        self._lock = Lock()
        self._spans: list[tuple[float, float]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to a request as soon as its headers have arrived over the link."""
        self._cross(self._uplink, len(request.read()))
        began_s = monotonic_s()
        response = self._network.handle_request(request)
        stream = _ShapedStream(response, self._downlink, lambda: self._note(began_s))
        self._cross(self._downlink, 0)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=stream,
            extensions=response.extensions,
        )

    def take_server_s(self) -> float:
        """Return for how many seconds since the last call some request was at the server, or on the
        real network.
        """
        with self._lock:
            spans = sorted(self._spans)
            self._spans = []
        total_s = latest_s = 0.0
        for began_s, ended_s in spans:
            total_s += max(0.0, ended_s - max(began_s, latest_s))
            latest_s = max(latest_s, ended_s)
        return total_s

    def close(self) -> None:
        """Close the connections."""
        self._network.close()

    def _note(self, began_s: float) -> None:
        with self._lock:
            self._spans.append((began_s, monotonic_s()))

    @staticmethod
    def _cross(direction: LinkDirection[Delivery], size: int) -> None:
        arrived = Event()
        direction.put(arrived.set, size)
        arrived.wait()


class _ShapedStream(httpx.SyncByteStream):
    """The content of an answer, read in a thread of its own so that the link delays parts that
    follow each other.
    """

    def __init__(
        self, response: httpx.Response, downlink: LinkDirection[Delivery], ended: Callable[[], None]
    ) -> None:
        self._response = response
        self._downlink = downlink
        self._ended = ended
        self._arrived: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self._abandoned = Event()
        Thread(target=self._read, name="answer", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._arrived.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self) -> None:
        """Let the reading thread close the connection, with the next part of an answer that is not
        read to its end.
        """
        self._abandoned.set()

    def _read(self) -> None:
        end: Exception | None = None
        try:
            assert isinstance(self._response.stream, httpx.SyncByteStream)
            for part in self._response.stream:
                if self._abandoned.is_set():
                    break
                self._send(part)
        except (
            Exception
        ) as error:  # whatever it is, the thread that reads the answer has to meet it
            end = error
        self._ended()
        with suppress(Exception):
            self._response.close()
        self._send(end)

    def _send(self, part: bytes | Exception | None) -> None:
        size = len(part) if isinstance(part, bytes) else 0
        self._downlink.put(lambda: self._arrived.put(part), size)


def _deliver(arrival: Delivery) -> None:
    arrival()
