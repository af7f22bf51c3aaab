"""An emulated link in front of an HTTP server: requests and answers arrive as late as they would over the link."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread

import httpx

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.base import Link
from specbench_kit.live.links.direction import LinkDirection
from specbench_kit.live.streams.http import Transport

Delivery = Callable[[], object]
"""What happens on arrival of a message."""


class ShapedTransport(httpx.BaseTransport):
    """Sends requests through an emulated link, whose bandwidth they share; bodies count, headers do not."""

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
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )

    def take_server_s(self) -> float:
        """Return for how many seconds since the last call some request was at the server, or on the real network."""
        with self._lock:
            spans, self._spans = sorted(self._spans), []
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
    """The content of an answer, read in a thread of its own so that the link delays parts that follow each other."""

    def __init__(self, response: httpx.Response, downlink: LinkDirection[Delivery], ended: Callable[[], None]) -> None:
        self._response, self._downlink, self._ended = response, downlink, ended
        self._arrived: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self._abandoned = Event()
        Thread(target=self._read, name="answer", daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._arrived.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self) -> None:
        """Let the reading thread close the connection, with the next part of an answer that is not read to its end."""
        self._abandoned.set()

    def _read(self) -> None:
        end: Exception | None = None
        try:
            assert isinstance(self._response.stream, httpx.SyncByteStream)
            for part in self._response.stream:
                if self._abandoned.is_set():
                    break
                self._send(part)
        except Exception as error:  # whatever it is, the thread that reads the answer has to meet it
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
