"""llama.cpp's server: its own route, which names its tokens and cannot score a draft in one pass,
and its chat.
"""

from collections.abc import Iterator, Sequence
from math import isclose

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.base import (
    TEXTS_ALONE,
    WRONG_ANSWER,
    ErrorDocument,
    Generation,
    GenerationRequest,
    ScoringRequest,
    ServerDocument,
    ServerFacts,
    StreamEvent,
    TokenServer,
    dialects,
    error_text,
    read_event,
    token_server,
)
from specbench_kit.live.engines.openai import ModelCard, OpenAIChat, Timings
from specbench_kit.live.engines.request_fields import RequestBody

SAMPLERS = ["top_k", "temperature", "top_p"]
"""The steps of the kit's sampler. By default, the server cuts by top-p before it applies the
temperature.
"""
DISABLED: RequestBody = {
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "repeat_last_n": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "ignore_eos": False,
    "logit_bias": [],
    "grammar": "",
}
"""The values that switch off what the kit's sampler does not do. The server's own defaults leave
some of it on.
"""
LIKELIEST = 64
ALL = 1 << 20
"""Tokens whose log-probabilities are asked for: usually, and where a token that matters is not
among them.
"""
SETTINGS = "generation_settings"
UNDRAFTED: RequestBody = {"speculative.n_max": 0}
"""Newer servers do not know this field, and draft all the same."""
FROM_CACHE: RequestBody = {"cache_prompt": True}
RELATIVE_ERROR = 1e-6
"""The server holds numbers as float32."""


class LlamaModels(Struct):
    """The document `/v1/models`."""

    data: list[ModelCard] | None = None


class LlamaSettings(Struct):
    """What the server does with a request that asks for nothing else."""

    n_ctx: int | None = None


class LlamaProperties(Struct):
    """The document `/props`, as far as facts are read from it."""

    default_generation_settings: LlamaSettings | None = None
    build_info: str | None = None


class LlamaChunk(Struct):
    """The data of one event."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    error: ErrorDocument = None


def _finish_reason(chunk: LlamaChunk) -> str | None:
    """Return why an answer ended; older servers say only that it did."""
    kinds = {"limit": "length", "eos": "stop", "word": "stop", "none": "stop", "": "stop"}
    stop_type = chunk.stop_type or ""
    return kinds.get(stop_type, stop_type) if chunk.stop else None


def sampling_fields(sampler: Sampler) -> RequestBody:
    """Return every sampling field of a request, so that no default of the server is left in
    force.
    """
    return {
        **DISABLED,
        "samplers": SAMPLERS,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k,
    }


def differences(sent: RequestBody, used: ServerDocument) -> list[str]:
    """Return a text for each sampling field that the server used with another value than was sent.

    Servers state only the fields that they know; what an older one does not know, it does not
    apply.
    """
    wrong = [
        f"{name} {used[name]!r} instead of {value!r}"
        for name, value in sent.items()
        if name in used and not _equal(value, used[name])
    ]
    return wrong + [
        f"{name} unknown"
        for name in ("samplers", "temperature", "top_p", "top_k")
        if name not in used
    ]


def _equal(sent: object, used: object) -> bool:
    if isinstance(sent, float) and isinstance(used, int | float):
        return isclose(sent, used, rel_tol=RELATIVE_ERROR)
    return sent == used


@token_server("llama-cpp")
class LlamaCpp(TokenServer):
    """llama.cpp's own route: one token after every prefix, greedy or by its own sampler.

    The server states the settings that it sampled with. An answer by other settings than those that
    were sent is refused, because its tokens come from another distribution.
    """

    path = "/completion"
    facts_paths = ("/v1/models", "/props")
    undrafted = UNDRAFTED
    from_cache = FROM_CACHE
    has_shapes = True
    run_with = "llama-server 0.5.0-dev (commit 0c1e570)"
    takes_schema = True

    def body(self, generation: Generation) -> RequestBody:
        return {
            "prompt": generation.text,
            "n_predict": generation.max_tokens,
            "temperature": generation.sampler.temperature,
            "top_p": generation.sampler.top_p,
            "seed": generation.seed,
            "return_tokens": True,
            "stream": True,
            **_own_fields(generation),
            **({"json_schema": generation.schema_object} if generation.schema else {}),
        }

    def read(self, data: str) -> StreamEvent:
        chunk = read_event(LlamaChunk, data)
        timings = chunk.timings or Timings()
        return StreamEvent(
            text=chunk.content,
            token_ids=chunk.tokens,
            tokens=len(chunk.tokens),
            counted_by="token ids",
            total_tokens=chunk.tokens_predicted or (timings.predicted_n if chunk.stop else None),
            finish_reason=_finish_reason(chunk),
            prompt_tokens=chunk.tokens_evaluated if chunk.stop else None,
            cached_tokens=timings.cache_n,
            drafts=timings.drafts(),
            error=error_text(chunk.error),
        )

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        return _facts(*documents)

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        fields = sampling_fields(request.sampler)
        if request.sampler.greedy:
            return self._complete(request.prefixes, fields)
        return [
            self._complete([prefix], {**fields, "seed": seed})[0]
            for prefix, seed in zip(request.prefixes, request.seeds, strict=True)
        ]

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        fields = sampling_fields(request.sampler)
        body = {
            "prompt": list(request.text),
            "n_predict": request.max_tokens,
            "stream": True,
            "return_tokens": True,
        }
        text = list(request.text)
        count = 0
        for event in self.events(
            self.path, {**body, "cache_prompt": True, **fields, "seed": request.seed}
        ):
            if event.total_tokens is None:
                raise self.unexpected_answer("its stream must count tokens")
            tokens = event.token_ids or []
            missing = event.total_tokens - count - len(tokens)
            # The server does not send a token that ends within a character, only the one that
            # completes it.
            held_back: list[int] = []
            for _ in range(missing if tokens else 0):
                held_back += self._complete([[*text, *held_back]], fields)
            tokens = [*held_back, *tokens]
            text = [*text, *tokens]
            count = count + len(tokens)
            if tokens:
                yield tokens

    def _complete(self, prompts: list[list[int]], sampling: RequestBody) -> list[int]:
        """Return the next token of every prompt; raise SkitError if the server sampled by other
        settings.
        """
        body = {"prompt": prompts, "n_predict": 1, "return_tokens": True, "cache_prompt": True}
        fields = ["index", "tokens", SETTINGS]
        answer = self.post(self.path, {**body, **sampling, "response_fields": fields})
        try:
            rows = (
                answer if isinstance(answer, list) else [answer]
            )  # one prompt is answered without a list
            tokens = [
                int(row["tokens"][0]) for row in sorted(rows, key=lambda row: int(row["index"]))
            ]
            wrong = [text for row in rows for text in differences(sampling, row[SETTINGS])]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error
        if wrong:
            raise SkitError(
                f"{self._base} samples from another distribution than it was asked for: "
                f"{', '.join(dict.fromkeys(wrong))}; start llama-server without the options that set this"
            )
        return tokens

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        values = self._likeliest(text, LIKELIEST, fresh=fresh)
        return values if set(tokens) <= values.keys() else self._likeliest(text, ALL, fresh=fresh)

    def _likeliest(self, text: Sequence[int], count: int, *, fresh: bool) -> dict[int, float]:
        """Return the log-probabilities of the likeliest next tokens."""
        body = {
            "prompt": [list(text)],
            "n_predict": 1,
            "n_probs": count,
            "post_sampling_probs": False,
        }
        answer = self.post(
            self.path, {**body, "cache_prompt": not fresh, **sampling_fields(Sampler())}
        )
        try:
            likeliest = answer["completion_probabilities"][0]["top_logprobs"]
            return {int(entry["id"]): float(entry["logprob"]) for entry in likeliest}
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error

    def model(self) -> tuple[str, int | None]:
        """Return name and context length; raise SkitError if the server samples by settings of its
        own.
        """
        try:
            properties = self.get("/props")
        except SkitError as error:
            raise SkitError(f"{error}; is it llama-server? Note that {TEXTS_ALONE}") from error
        name, _ = super().model()
        self._complete([[0]], sampling_fields(Sampler()))
        return name, int(properties["default_generation_settings"]["n_ctx"])

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"content": text})["tokens"])


@dialects.register("llama-cpp-chat")
class LlamaCppChat(OpenAIChat):
    """llama.cpp's chat completions: prompts are a user's messages, with every sampling field
    sent.
    """

    facts_paths = ("/v1/models", "/props")
    undrafted = UNDRAFTED
    from_cache = FROM_CACHE
    may_ignore_eos = True

    def body(self, generation: Generation) -> RequestBody:
        return {**super().body(generation), **_own_fields(generation)}

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        return _facts(*documents)


def _own_fields(generation: Generation) -> RequestBody:
    """Return the fields that OpenAI's routes lack; the server's own defaults would change the
    distribution.
    """
    return {
        "top_k": generation.sampler.top_k,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "ignore_eos": generation.ignore_eos,
        "cache_prompt": False,
    }


def _facts(*documents: ServerDocument | None) -> ServerFacts:
    listed, properties = documents
    card = next(iter(convert(LlamaModels, listed).data or ()), None)
    described = convert(LlamaProperties, properties or {})
    settings = described.default_generation_settings or LlamaSettings()
    return ServerFacts(card.id if card else None, settings.n_ctx, described.build_info)
