"""The grammars of devices, each compiled once with the server's own tokenizer.

A device's grammar can keep the library busy for minutes. Every new one is therefore compiled first
in a process that is ended after a few seconds, and then here, in a thread beside the event loop;
only the stream that sent it waits.
"""

import asyncio
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from specbench_kit.core.plain_text import first_line
from specbench_kit.decoding.constraint import Constraint, Grammars, read_spec
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server import grammar_check
from specbench_kit.live.wire import Refusal, Status, Up

MOST_BYTES = 1 << 16
"""Size of the longest text of a grammar."""
MOST_GRAMMARS = 256
"""Grammars that are kept, the latest used ones; sessions go on with those that are forgotten."""
LONGEST_COMPILATION_S = 5.0
"""Seconds after which a grammar is refused. The schema of a large tool takes a tenth of one."""
THREADS = 2
RETRY_MS = 100


class ServerGrammars:
    """Compiles and keeps grammars; all but the compilation belongs to the event loop.

    `make` returns the library's compiler for the server's tokenizer; a server without one knows no
    grammar.
    """

    def __init__(self, make: Callable[[], Grammars] | None = None) -> None:
        self._make = make
        self._known: OrderedDict[str, Constraint | Refusal] = OrderedDict()
        """Constraints, and the refusals of texts that are none, by text."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "grammars")

    @property
    def most_bytes(self) -> int:
        """The size of the longest text that is taken, for the welcome; 0 without a compiler."""
        return 0 if self._make is None else MOST_BYTES

    def find(self, text: str) -> Constraint | None:
        """Return the constraint of a text that was prepared; None of an empty one.

        Raise Refusal for a text that is no grammar.
        """
        if not text:
            return None
        self._require_size(text)
        known = self._known.get(text)
        if known is None:
            raise Refusal(Status.OVERLOADED, "the grammar was forgotten: send it again", RETRY_MS)
        if isinstance(known, Refusal):
            raise known
        self._known.move_to_end(text)
        return known

    async def prepare(self, frame: Up) -> None:
        """Compile the grammar that a frame names, if it names one that is not known."""
        text = _grammar_in(frame)
        if not text or text in self._known or len(text.encode()) > self.most_bytes:
            return
        if text not in self._under_way:
            self._under_way[text] = asyncio.create_task(self._compile(text))
        # Another stream may wait for the same grammar, whatever becomes of this one.
        await asyncio.shield(self._under_way[text])

    def close(self) -> None:
        """End the threads once their grammars are compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _require_size(self, text: str) -> None:
        if self._make is None:
            raise Refusal(Status.BROKEN_GRAMMAR, "this server knows no grammars")
        if (size := len(text.encode())) > MOST_BYTES:
            raise Refusal(
                Status.BROKEN_GRAMMAR, f"a text of {size} bytes; this server takes {MOST_BYTES}"
            )

    async def _compile(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._known[text] = await loop.run_in_executor(self._threads, self._compiled, text)
        finally:
            del self._under_way[text]
        if len(self._known) > MOST_GRAMMARS:
            _, forgotten = self._known.popitem(last=False)
            if isinstance(forgotten, Constraint):
                self._compiler.forget(forgotten.spec)

    def _compiled(self, text: str) -> Constraint | Refusal:
        """Return the constraint of a text, or why there is none. Runs in a thread of its own."""
        try:
            if fault := fault_within(text, LONGEST_COMPILATION_S):
                return Refusal(Status.BROKEN_GRAMMAR, fault)
            return self._compiler.compile(read_spec(text), "with this server's tokenizer")
        except Exception as error:  # the library parses a text, and a tokenizer, of any kind
            return Refusal(Status.BROKEN_GRAMMAR, first_line(error))

    @cached_property
    def _compiler(self) -> Grammars:
        assert self._make is not None
        return self._make()


def fault_within(text: str, seconds: float) -> str:
    """Return what is wrong with a grammar, as a process of its own finds within that time; empty
    if nothing is.
    """
    command = [sys.executable, "-m", grammar_check.__name__]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {seconds:g} seconds to compile"
    lines = done.stdout.decode(errors="replace").splitlines()
    # A process that prints nothing has been ended by the grammar.
    return lines[0] if lines else "it cannot be compiled"


def _grammar_in(frame: Up) -> str:
    content: messages.Open | messages.Score
    match frame.WhichOneof("kind"):
        case "open":
            content = frame.open
        case "score":
            content = frame.score
        case _:
            return ""
    return content.grammar
