"""SGLang's own route, which counts tokens in every event and scores the draft alone in one request;
and its chat.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from specbench_kit.core.typed_json import convert
from specbench_kit.live.engines.base import (
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
from specbench_kit.live.engines.counters import SglangCounts
from specbench_kit.live.engines.openai import OpenAIChat
from specbench_kit.live.engines.request_fields import RequestBody

LIKELIEST = 20
"""Tokens whose log-probabilities are asked for at a divergence."""


class FinishReason(Struct):
    """Why an answer ended."""

    type: str | None = None


class MetaInfo(SglangCounts):
    """The counts of an answer so far; those of speculation come with its last event."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None


class SglangModel(Struct):
    """The document `/get_model_info`."""

    model_path: str | None = None


class SglangServer(Struct):
    """The document `/get_server_info`, as far as facts are read from it."""

    context_length: int | None = None
    version: str | None = None


class SglangChunk(Struct):
    """The data of one event."""

    text: str = ""
    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    error: ErrorDocument = None


@token_server("sglang")
class Sglang(TokenServer):
    """Greedy drafts in one request, scored from the last committed token on; its prefix cache holds
    the text.

    The adapter was never run against a real SGLang: it follows the documented form of requests and
    answers. It cannot verify sampled drafts, does not compare the tokenizers of target and draft
    model, and does not ask for the context length.
    """

    path = "/generate"
    facts_paths = ("/get_model_info", "/get_server_info")
    supports_sampling = False
    has_shapes = True
    takes_schema = True

    def body(self, generation: Generation) -> RequestBody:
        sampler = generation.sampler
        sampling = {
            "max_new_tokens": generation.max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "top_k": sampler.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": generation.ignore_eos,
            **({"json_schema": generation.schema} if generation.schema else {}),
        }
        return {"text": generation.text, "sampling_params": sampling, "stream": True}

    def read(self, data: str) -> StreamEvent:
        chunk = read_event(SglangChunk, data)
        meta = chunk.meta_info or MetaInfo()
        ids = chunk.output_ids
        # A server started with --stream-output sends what is new, any other the whole answer so
        # far.
        is_whole = ids is None or len(ids) == meta.completion_tokens
        return StreamEvent(
            text=chunk.text,
            token_ids=ids,
            counted_by="running usage" if ids is None else "token ids",
            total_tokens=meta.completion_tokens,
            cumulative=is_whole,
            finish_reason=(meta.finish_reason.type or "") if meta.finish_reason else None,
            prompt_tokens=meta.prompt_tokens,
            cached_tokens=meta.cached_tokens,
            drafts=meta.drafts(meta.completion_tokens),
            error=error_text(chunk.error),
        )

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        return _facts(*documents)

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        count = len(request.chain)
        body = {
            "input_ids": [*request.text, *request.chain],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": len(request.text) - 1,
            "top_logprobs_num": 1,
        }
        answer = self.post(self.path, body)
        try:
            info = answer["meta_info"]
            rows = info["input_top_logprobs"][-count:] if count else []
            # Rows hold [log-probability, token id, text]. Newer versions return the generated token
            # separately.
            last = (
                [[0.0, answer["output_ids"][0]]]
                if "output_ids" in answer
                else info["output_top_logprobs"][0]
            )
            return [int(row[0][1]) for row in [*rows, last]]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        body = {
            "input_ids": list(request.text),
            "sampling_params": {
                "max_new_tokens": request.max_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
            },
            "stream": True,
        }
        return self.new_tokens(self.path, body)

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        """Ask for the likeliest next tokens, and score each other one as the last token of a
        prompt.

        SGLang computes anew what is to be scored, hence the whole text if its first token is.
        """
        body = {
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0 if fresh else len(text) - 1,
            "top_logprobs_num": LIKELIEST,
        }
        answer = self.post(self.path, {**body, "input_ids": list(text)})
        try:
            values = {
                int(row[1]): float(row[0]) for row in answer["meta_info"]["output_top_logprobs"][0]
            }
            for token in set(tokens) - values.keys():
                answer = self.post(self.path, {**body, "input_ids": [*text, token]})
                value, scored = answer["meta_info"]["input_token_logprobs"][-1][:2]
                if int(scored) != token:
                    raise ValueError(f"a log-probability of token {scored} in place of {token}")
                values[token] = float(value)
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error
        return values

    def model(self) -> tuple[str, int | None]:
        return str(self.get("/get_model_info")["model_path"]), None


@dialects.register("sglang-chat")
class SglangChat(OpenAIChat):
    """SGLang's chat completions: prompts are a user's messages; versions that count speculation
    there are asked to.

    As the adapter of its own route, it was never run against a real SGLang.
    """

    facts_paths = Sglang.facts_paths
    may_ignore_eos = True

    def body(self, generation: Generation) -> RequestBody:
        own = {
            "top_k": generation.sampler.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": generation.ignore_eos,
            "return_spec_tokens_details": True,
        }
        return {**super().body(generation), **own}

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        return _facts(*documents)


def _facts(*documents: ServerDocument | None) -> ServerFacts:
    model, server = documents
    described = convert(SglangServer, server or {})
    path = convert(SglangModel, model).model_path
    return ServerFacts(path, described.context_length, described.version)
