"""The streams of llama.cpp: its own route, which names its tokens, and its chat."""

from typing import Any

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.streams.base import (
    Generation,
    ServerFacts,
    StreamDialect,
    StreamEvent,
    dialects,
    error_text,
    read_event,
)
from specbench_kit.live.streams.openai import OpenAIChat, Timings


class LlamaChunk(Struct):
    """The data of one event."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str | None = None
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    error: JsonObject | str | None = None


@dialects.register("llama-cpp")
class LlamaCppStream(StreamDialect):
    """llama.cpp's `/completion`: the prompt is continued as it stands, with every sampling field sent."""

    path = "/completion"
    facts_paths = ("/v1/models", "/props")
    skips_cache = True

    def body(self, generation: Generation) -> JsonObject:
        return {
            "prompt": generation.text,
            "n_predict": generation.max_tokens,
            "temperature": generation.sampler.temperature,
            "top_p": generation.sampler.top_p,
            "seed": generation.seed,
            "return_tokens": True,
            "stream": True,
            **_own_fields(generation),
        }

    def read(self, data: str) -> StreamEvent:
        chunk = read_event(LlamaChunk, data)
        timings = chunk.timings or Timings()
        return StreamEvent(
            text=chunk.content,
            token_ids=chunk.tokens,
            tokens=len(chunk.tokens),
            counted_by="token ids",
            total_tokens=timings.predicted_n if chunk.stop else None,
            finish_reason={"limit": "length", "eos": "stop", "word": "stop"}.get(
                chunk.stop_type or "", chunk.stop_type
            ),
            prompt_tokens=chunk.tokens_evaluated if chunk.stop else None,
            cached_tokens=timings.cache_n,
            drafts=timings.drafts(),
            error=error_text(chunk.error),
        )

    def facts(self, *documents: JsonObject | None) -> ServerFacts:
        return _facts(*documents)


@dialects.register("llama-cpp-chat")
class LlamaCppChat(OpenAIChat):
    """llama.cpp's chat completions: prompts are a user's messages, with every sampling field sent."""

    facts_paths = ("/v1/models", "/props")
    may_ignore_eos = True
    skips_cache = True

    def body(self, generation: Generation) -> dict[str, Any]:
        return {**super().body(generation), **_own_fields(generation)}

    def facts(self, *documents: JsonObject | None) -> ServerFacts:
        return _facts(*documents)


def _own_fields(generation: Generation) -> dict[str, Any]:
    """Return the fields that OpenAI's routes lack; the server's own defaults would change the distribution."""
    return {
        "top_k": generation.sampler.top_k,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "ignore_eos": generation.ignore_eos,
        "cache_prompt": False,
    }


def _facts(*documents: JsonObject | None) -> ServerFacts:
    models = documents[0] or {}
    props = documents[1] or {}
    names = [str(entry.get("id")) for entry in models.get("data") or ()]
    context = (props.get("default_generation_settings") or {}).get("n_ctx")
    build = props.get("build_info")
    return ServerFacts(names[0] if names else None, context, build and str(build))
