"""The contracts of one kind of inference server: how requests are put to it, and how its answers
are read.

A `ServerDialect` is all that a stream of text needs. An `EngineAdapter` also verifies: it asks for
the target's token after every token of a draft.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import httpx
from msgspec import Struct

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.registry import Registry
from specbench_kit.core.typed_json import JsonObject, convert, decode, parse
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.answers import CountedBy, DraftCounts
from specbench_kit.live.engines.http import API_KEY, ServerClient, ShapedTransport, api_key
from specbench_kit.live.engines.request_fields import RequestBody
from specbench_kit.runs.deployment import Link

T = TypeVar("T")
S = TypeVar("S", bound="TokenServer")
ServerDocument = JsonObject
"""A JSON object by which a server describes itself, from which a dialect reads its own struct."""
ErrorDocument = JsonObject | str | None
"""What a server puts into the field `error` of an answer, for whose object each has its own form."""
TIMEOUT_S = 120.0
WRONG_ANSWER = (KeyError, IndexError, TypeError, ValueError)
"""What reading an answer raises that is not in the engine's documented form."""

TEXTS_ALONE = (
    "the server of llama-cpp-python takes and returns texts instead of token ids, so that no draft can be verified "
    "there: run llama.cpp's own llama-server with the same GGUF file and give --server llama-cpp://HOST:PORT"
)


class ScoringRequest(NamedTuple):
    """A text, a drafted chain after it, and the sampler; `seeds[i]` is for the token after `i`
    tokens of the chain.

    A seed belongs to a position of the output, so that plain decoding with the same seeds samples
    the same tokens.
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
    """A text to continue by at most `max_tokens` tokens; `seed` is that of the engine's own
    sampler.
    """

    text: Sequence[int]
    max_tokens: int
    sampler: Sampler
    seed: int


class Generation(Struct, frozen=True):
    """A request: a prompt, the most tokens of its answer, and how tokens are chosen.

    `history` holds the earlier turns of a dialogue: what was asked, and what the server answered; `system` the
    system's message before them. `schema` is the JSON schema that the server is asked to hold the answer to, "" for
    none. `recorded` is the JSON of the messages of a conversation with tools, which then stand for prompt, history and
    system, and `tools` that of the descriptions of its tools. `label` differs between any two requests, so that a
    server need not answer one from what it kept of another. `added` holds fields of the server's own, which its request
    has besides.
    """

    prompt: str
    max_tokens: int
    sampler: Sampler
    seed: int
    label: str
    ignore_eos: bool = False
    history: tuple[tuple[str, str], ...] = ()
    system: str = ""
    schema: str = ""
    recorded: str = ""
    tools: str = ""
    added: RequestBody = {}

    @property
    def tool_list(self) -> list[JsonObject]:
        """The descriptions of the tools of a conversation."""
        return convert(list[JsonObject], parse(self.tools)) if self.tools else []

    @property
    def schema_object(self) -> ServerDocument:
        """The JSON schema of the answer as an object."""
        return convert(dict[str, Any], parse(self.schema))

    @property
    def text(self) -> str:
        """The whole dialogue as a text, for routes that continue one."""
        return "\n\n".join(message["content"] for message in self.messages)

    @property
    def messages(self) -> list[JsonObject]:
        """The whole dialogue as messages, for routes that answer them."""
        if self.recorded:
            return convert(list[JsonObject], parse(self.recorded))
        earlier = [
            {"role": role, "content": content}
            for turn in self.history
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *earlier, {"role": "user", "content": self.prompt}]


class CallPart(NamedTuple):
    """A part of a call of a tool: the position of the call among those of the answer, and what is
    new of its name and its arguments.
    """

    position: int
    name: str
    arguments: str


class StreamEvent(Struct, frozen=True):
    """One event of a stream, in which None stands for what the server does not say.

    `text` is the new part of the reply, `reasoning` that of the model's thoughts, and `other` what arrived in any other
    field, such as calls of tools, whose parts `calls` holds; the next turn of a dialogue repeats the reply alone.
    `tokens` is the number of new tokens, counted as `counted_by` says; `total_tokens` the number so far, the new ones
    included, and `reasoning_tokens` that of the thoughts among them. In a `cumulative` event, text and token ids are
    those of the whole answer so far. An empty `finish_reason` is none.
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
    reasoning_tokens: int | None = None
    other: str = ""
    calls: tuple[CallPart, ...] = ()


class ServerFacts(Struct, frozen=True):
    """What a server says of itself."""

    model: str | None = None
    context: int | None = None
    version: str | None = None


class ServerDialect(ABC):
    """One form of requests and streams, registered here or under the entry-point group
    `specbench_kit.live.streams`.
    """

    path: ClassVar[str]
    """The path of the route that generates."""
    facts_paths: ClassVar[tuple[str, ...]] = ("/v1/models",)
    """The paths that describe the server; the first one must answer."""
    may_ignore_eos: ClassVar[bool] = True
    """True if the server can be told to go on after an end-of-sequence token."""
    applies_chat_template: ClassVar[bool] = False
    """True if the server puts a prompt into the model's chat template; False if it continues the
    text as it stands.
    """
    newer_names: ClassVar[Mapping[str, str]] = {}
    """The newer names of fields that some servers know under that name alone."""
    takes_schema: ClassVar[bool] = False
    """True if requests state `Generation.schema`, by which the server masks its answer."""
    undrafted: ClassVar[RequestBody] = {}
    """Fields by which the versions of a server that know them decode one request without drafts."""
    from_cache: ClassVar[RequestBody] = {}
    """Fields by which the server computes only what is new of a prompt with a known beginning."""
    model_name: str = ""
    """The model that requests ask for."""
    version: str = ""
    """The version of the server's software, where it says so."""

    @abstractmethod
    def body(self, generation: Generation) -> RequestBody:
        """Return the JSON body that asks for a streamed answer."""

    @abstractmethod
    def read(self, data: str) -> StreamEvent:
        """Return what the data of one event says; raise ValueError if it is not in the server's
        form.
        """

    @abstractmethod
    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        """Return what the documents at `facts_paths` say; a document is None if the server does not
        have it.
        """


class EngineAdapter(ABC):
    """One kind of engine, registered in this package or under the entry-point group
    `specbench_kit.live.engines`.
    """

    supports_sampling: ClassVar[bool] = True
    """True if the engine can sample the target's tokens too; False if it is greedy only."""
    has_shapes: ClassVar[bool] = False
    """True if `log_probabilities` computes a text anew or behind the prefix cache, as it is asked
    to.
    """
    run_with: ClassVar[str] = ""
    """The versions of the engine with which the adapter was run; empty if it was only tested
    against a stand-in.
    """

    def __init__(self, base: str) -> None:
        require(
            "@" not in base,
            f"leave user and password out of the address: a key is read from {API_KEY}",
        )
        self._base = base
        self._key = api_key()
        try:
            self._client = ServerClient(base, TIMEOUT_S, key=self._key)
        except (httpx.InvalidURL, ValueError) as error:
            raise SkitError(
                f"{base} is no address: {first_line(error)}; give ENGINE://HOST:PORT"
            ) from error
        self.link: ShapedTransport | None = None
        """The emulated link to the engine, if there is one."""

    def emulate_link(self, link: Link) -> None:
        """Send all requests from now on through an emulated link."""
        self._client.close()
        self.link = ShapedTransport(link)
        self._client = ServerClient(self._base, TIMEOUT_S, key=self._key, transport=self.link)

    def verification_route(self) -> str:
        """Return in words how the engine verifies: "by ..."; an adapter with a choice of routes
        chooses here.
        """
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
        """Return the target's log-probabilities after a text: of `tokens`, and of the two likeliest
        at least.

        A `fresh` text is computed as a whole, any other from behind what the engine's prefix cache
        holds of it, as far as the engine lets its clients choose. Return None if the engine cannot
        be asked.
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
        """Return the JSON answer to a GET request; raise SkitError with one line if there is
        none.
        """
        return self._client.request("GET", path)

    def post(self, path: str, body: RequestBody) -> Any:
        """Return the JSON answer to a POST request; raise SkitError with one line if there is
        none.
        """
        return self._client.request("POST", path, body)

    def stream(self, path: str, body: RequestBody) -> Iterator[str]:
        """Yield the data of each event of a streamed answer to a POST request; raise SkitError if
        it breaks.
        """
        return self._client.stream(path, body)

    def unexpected_answer(self, reason: str) -> SkitError:
        """Return the error for an answer that is not in the engine's form."""
        line = (
            f"{self._base} answered in an unknown form: {reason}; is it the engine that was named?"
        )
        return SkitError(self._client.printable(line))


class TokenServer(EngineAdapter, ServerDialect):
    """An engine whose streams name their tokens, so that it can be a server under test and a
    verifier.

    Without the address `base` it only says what requests and answers look like.
    """

    def __init__(self, base: str = "") -> None:
        if base:
            super().__init__(base)

    def events(self, path: str, body: RequestBody) -> Iterator[StreamEvent]:
        """Yield the events of a streamed answer; raise SkitError for one that is not in the
        engine's form.
        """
        for data in self.stream(path, body):
            try:
                event = self.read(data)
            except ValueError as error:
                raise self.unexpected_answer(repr(error)) from error
            if event.error is not None or (event.text and event.token_ids is None):
                raise self.unexpected_answer(event.error or "its stream must hold token ids")
            yield event

    def new_tokens(self, path: str, body: RequestBody) -> Iterator[list[int]]:
        """Yield the new tokens of a streamed answer, some of whose events may hold those of the
        whole answer so far.
        """
        count = 0
        for event in self.events(path, body):
            tokens = event.token_ids or []
            if event.cumulative:
                tokens = tokens[count:]
            count += len(tokens)
            if tokens:
                yield tokens


engines: Registry[type[EngineAdapter]] = Registry("engine", "specbench_kit.live.engines")
dialects: Registry[type[ServerDialect]] = Registry(
    "kind of server", "specbench_kit.live.engines", "specbench_kit.live.streams"
)


def token_server(name: str) -> Callable[[type[S]], type[S]]:
    """Return a decorator that registers a class as an engine and as a kind of server."""

    def add(kind: type[S]) -> type[S]:
        engines.register(name)(kind)
        dialects.register(name)(kind)
        return kind

    return add


def best_token(logprobs: Mapping[str, Mapping[str, float]]) -> int:
    """Return the token id with the highest log-probability, from entries by token id."""
    return int(max(logprobs, key=lambda token: logprobs[token]["logprob"]))


def read_event(kind: type[T], data: str) -> T:
    """Return the record of an event; raise ValueError if it is none.

    What other clients read is read: null for a field that is left out, and whole numbers as 10.0.
    """
    try:
        return decode(kind, data)
    except ValueError:
        return convert(kind, _plain(parse(data)))


def _plain(value: Any) -> Any:
    """Return a document without nulls, and with whole numbers as such."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def error_text(error: ErrorDocument) -> str | None:
    """Return the words of an error, which is a text, or an object with a message; None if there is
    none.
    """
    message = error.get("message") if isinstance(error, Mapping) else None
    return str(message or error) if error else None
