"""The contract of an adapter: the target's token after every token of a draft, asked for over HTTP.

Also here: an emulated link in front of an HTTP server: requests and answers arrive as late as they would over the
link.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, ClassVar, NamedTuple

import httpx

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.registry import Registry
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Link
from specbench_kit.live.links.direction import LinkDirection
from specbench_kit.live.streams.http import API_KEY, ServerClient, Transport, api_key

TIMEOUT_S = 120.0
WRONG_ANSWER = (KeyError, IndexError, TypeError, ValueError)
"""What reading an answer raises that is not in the engine's documented form."""

TEXTS_ALONE = (
    "the server of llama-cpp-python takes and returns texts instead of token ids, so that no draft can be verified "
    "there: run llama.cpp's own llama-server with the same GGUF file and give --server llama-cpp://HOST:PORT"
)


class ScoringRequest(NamedTuple):
    """A text, a drafted chain after it, and the sampler; `seeds[i]` is for the token after `i` tokens of the chain.

    A seed belongs to a position of the output, so that plain decoding with the same seeds samples the same tokens.
    """

    text: Sequence[int]
    chain: Sequence[int]
    sampler: Sampler
    seeds: Sequence[int]

    @property
    def prefixes(self) -> list[list[int]]:
        """The text followed by none, one, ..., all tokens of the chain."""
        return [[*self.text, *self.chain[:count]] for count in range(len(self.chain) + 1)]


class GenerationRequest(NamedTuple):
    """A text to continue by at most `max_tokens` tokens; `seed` is that of the engine's own sampler."""

    text: Sequence[int]
    max_tokens: int
    sampler: Sampler
    seed: int


class EngineAdapter(ABC):
    """One kind of engine, registered in this package or under the entry-point group `specbench_kit.live.engines`."""

    supports_sampling: ClassVar[bool] = True
    """True if the engine can sample the target's tokens too; False if it is greedy only."""
    has_shapes: ClassVar[bool] = False
    """True if `log_probabilities` computes a text anew or behind the prefix cache, as it is asked to."""
    run_with: ClassVar[str] = ""
    """The versions of the engine with which the adapter was run; empty if it was only tested against a stand-in."""

    def __init__(self, base: str) -> None:
        require("@" not in base, f"leave user and password out of the address: a key is read from {API_KEY}")
        self._base = base
        self._key = api_key()
        try:
            self._client = ServerClient(base, TIMEOUT_S, key=self._key)
        except (httpx.InvalidURL, ValueError) as error:
            raise SkitError(f"{base} is no address: {first_line(error)}; give ENGINE://HOST:PORT") from error
        self.link: ShapedTransport | None = None
        """The emulated link to the engine, if there is one."""

    def emulate_link(self, link: Link) -> None:
        """Send all requests from now on through an emulated link."""
        self._client.close()
        self.link = ShapedTransport(link)
        self._client = ServerClient(self._base, TIMEOUT_S, key=self._key, transport=self.link)

    def verification_route(self) -> str:
        """Return in words how the engine verifies: "by ..."; an adapter with a choice of routes chooses here."""
        return ""

    @abstractmethod
    def target_tokens(self, request: ScoringRequest) -> list[int]:
        """Return the target's token after the text, and after each token of the chain."""

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        """Yield the tokens that the engine decodes by itself after a text, as they arrive."""
        raise SkitError(
            f"{type(self).__name__} does not say how the engine decodes by itself, which the baseline needs: leave it "
            "out with --no-baseline"
        )

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float] | None:
        """Return the target's log-probabilities after a text: of `tokens`, and of the two likeliest at least.

        A `fresh` text is computed as a whole, any other from behind what the engine's prefix cache holds of it, as far
        as the engine lets its clients choose. Return None if the engine cannot be asked.
        """
        return None

    def model(self) -> tuple[str, int | None]:
        """Return the name of the engine's model, and its context length if the engine states it."""
        entry = self.get("/v1/models")["data"][0]
        return str(entry["id"]), entry.get("max_model_len")

    def tokenize(self, text: str) -> list[int] | None:
        """Return the engine's token ids of a text; None if the engine cannot be asked."""
        return None

    def close(self) -> None:
        """Close the connections to the engine."""
        self._client.close()

    def get(self, path: str) -> Any:
        """Return the JSON answer to a GET request; raise SkitError with one line if there is none."""
        return self._client.request("GET", path)

    def post(self, path: str, body: JsonObject) -> Any:
        """Return the JSON answer to a POST request; raise SkitError with one line if there is none."""
        return self._client.request("POST", path, body)

    def stream(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the events of a streamed answer to a POST request; raise SkitError with one line if it breaks."""
        return self._client.stream(path, body)

    def unexpected_answer(self, reason: str) -> SkitError:
        """Return the error for an answer that is not in the engine's form."""
        line = f"{self._base} answered in an unknown form: {reason}; is it the engine that was named?"
        return SkitError(self._client.printable(line))


engines: Registry[type[EngineAdapter]] = Registry("engine", "specbench_kit.live.engines")


def best_token(logprobs: Mapping[str, Mapping[str, float]]) -> int:
    """Return the token id with the highest log-probability, from entries by token id."""
    return int(max(logprobs, key=lambda token: logprobs[token]["logprob"]))


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
    """The content of an answer, read in a thread of its own so that the link delays parts that follow each other."""

    def __init__(self, response: httpx.Response, downlink: LinkDirection[Delivery], ended: Callable[[], None]) -> None:
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
