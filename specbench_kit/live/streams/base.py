"""The contract of a dialect: how a request is put to a kind of server, and how the events of its stream are read."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from specbench_kit.core.registry import Registry
from specbench_kit.core.typed_json import JsonObject, convert, decode, parse
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.metrics.ab.answers import CountedBy, DraftCounts

T = TypeVar("T")
TEXTS = ("content", "text", "reasoning_content", "reasoning")
"""Fields that hold a text, or a list of its parts."""


class Generation(Struct, frozen=True):
    """A request: a prompt, the most tokens of its answer, and how tokens are chosen.

    `history` holds the earlier turns of a dialogue: what was asked, and what the server answered; `system` the
    system's message before them. `label` differs between any two requests, so that a server need not answer one from
    what it kept of another.
    """

    prompt: str
    max_tokens: int
    sampler: Sampler
    seed: int
    label: str
    ignore_eos: bool = False
    history: tuple[tuple[str, str], ...] = ()
    system: str = ""

    @property
    def text(self) -> str:
        """The whole dialogue as a text, for routes that continue one."""
        return "\n\n".join(message["content"] for message in self.messages)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole dialogue as messages, for routes that answer them."""
        earlier = [
            {"role": role, "content": content}
            for turn in self.history
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *earlier, {"role": "user", "content": self.prompt}]


class StreamEvent(Struct, frozen=True):
    """One event of a stream, in which None stands for what the server does not say.

    `tokens` is the number of new tokens, counted as `counted_by` says; `total_tokens` the number so far, the new ones
    included. In a `cumulative` event, text and token ids are those of the whole answer so far. `reasoning` is the part
    at the beginning of the text that the next turn of a dialogue does not repeat.
    """

    text: str = ""
    token_ids: list[int] | None = None
    tokens: int | None = None
    counted_by: CountedBy = "chunks"
    total_tokens: int | None = None
    cumulative: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafts: DraftCounts | None = None
    error: str | None = None
    reasoning: str = ""


class ServerFacts(Struct, frozen=True):
    """What a server says of itself."""

    model: str | None = None
    context: int | None = None
    version: str | None = None


class StreamDialect(ABC):
    """One form of requests and streams, registered here or under the entry-point group `specbench_kit.live.streams`.

    `model` is the name that requests ask for.
    """

    path: ClassVar[str]
    """The path of the route that generates."""
    facts_paths: ClassVar[tuple[str, ...]] = ("/v1/models",)
    """The paths that describe the server; the first one must answer."""
    may_ignore_eos: ClassVar[bool] = True
    """True if the server can be told to go on after an end-of-sequence token."""
    skips_cache: ClassVar[bool] = False
    """True if the server can be told not to answer a prompt from what it kept of an earlier request."""

    def __init__(self, model: str = "") -> None:
        self.model = model

    @abstractmethod
    def body(self, generation: Generation) -> JsonObject:
        """Return the JSON body that asks for a streamed answer."""

    @abstractmethod
    def read(self, data: str) -> StreamEvent:
        """Return what the data of one event says; raise ValueError if it is not in the server's form."""

    @abstractmethod
    def facts(self, *documents: JsonObject | None) -> ServerFacts:
        """Return what the documents at `facts_paths` say; a document is None if the server does not have it."""


def read_event(kind: type[T], data: str) -> T:
    """Return the record of an event; raise ValueError if it is none.

    What other clients read is read: null for a field that is left out, whole numbers as 10.0, and texts in parts.
    """
    try:
        return decode(kind, data)
    except ValueError:
        return convert(kind, _plain(parse(data)))


def _plain(value: Any, name: str = "") -> Any:
    """Return a document without nulls, with whole numbers as such, and with a text for a list of its parts."""
    if isinstance(value, dict):
        return {key: _plain(inner, key) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        if name in TEXTS and all(isinstance(part, dict) for part in value):
            return "".join(str(part.get("text") or "") for part in value)
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def error_text(error: object) -> str | None:
    """Return the words of an error, which is a text, or an object with a message; None if there is none."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error) if error else None


dialects: Registry[type[StreamDialect]] = Registry("kind of server", "specbench_kit.live.streams")
