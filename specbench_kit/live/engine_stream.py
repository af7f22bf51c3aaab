"""Responses that another inference engine decodes by itself, one HTTP stream and one thread per request."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from queue import SimpleQueue
from threading import Event

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.live.engines.base import EngineAdapter, GenerationRequest
from specbench_kit.live.streaming import StreamedRound

THREADS = 64
SEED_BYTES = 4


@dataclass
class EngineStream:
    """Asks an engine to continue each prompt by its own decoding, as any client of it would."""

    engine: EngineAdapter
    sampler: Sampler
    seed: int
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "generation"))
    _arrived: SimpleQueue[list[StreamedRound] | SkitError] = field(default_factory=SimpleQueue)
    _ended: dict[str, Event] = field(default_factory=dict)

    def begin(self, session: Session) -> None:
        """Start the request in a thread of its own."""
        ended = self._ended[session.request.id] = Event()
        digest = blake2b(f"{self.seed}/{session.request.id}".encode(), digest_size=SEED_BYTES).digest()
        seed = int.from_bytes(digest) >> 1  # engines take signed 32-bit seeds
        request = GenerationRequest(list(session.tokens), session.request.max_new_tokens, self.sampler, seed)
        self._pool.submit(self._read, session.request.id, request, ended)

    def receive(self) -> Sequence[StreamedRound]:
        """Wait for tokens of any request; raise SkitError if a stream broke."""
        arrived = self._arrived.get()
        if isinstance(arrived, SkitError):
            raise arrived
        return arrived

    def end(self, session: Session) -> None:
        """Let the thread of a finished request close its stream."""
        self._ended.pop(session.request.id).set()

    def _read(self, name: str, request: GenerationRequest, ended: Event) -> None:
        """Pass on the tokens of a request until it is ended; an engine that stops before is asked to go on.

        Engines know other ends than the draft model's tokenizer, and the device decides where a response ends.
        """
        text, left = list(request.text), request.max_tokens
        try:
            while left > 0 and not ended.is_set():
                before = left
                for tokens in self.engine.generate(request._replace(text=text, max_tokens=left)):
                    arrived_s = monotonic_s()
                    text, left = [*text, *tokens], left - len(tokens)
                    # An engine decodes token by token, also where several arrive at once.
                    self._arrived.put([StreamedRound(name, [token], arrived_s) for token in tokens])
                    if ended.is_set():
                        return
                if left == before:
                    raise SkitError(f"the engine ended the response to {name} without a token")
        except SkitError as error:
            if not ended.is_set():
                self._arrived.put(error)
        except Exception as error:  # a plugin's adapter may raise anything, and nobody else would see it
            self._arrived.put(self.engine.unexpected_answer(repr(error)))
