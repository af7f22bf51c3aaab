"""The stream of SGLang's own route, which counts tokens in every event."""

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
from specbench_kit.metrics.ab.answers import DraftCounts


class MetaInfo(Struct):
    """The counts of an answer so far; those of speculation come with its last event."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: JsonObject | None = None
    spec_verify_ct: int | None = None
    spec_accept_token_num: int | None = None
    spec_draft_token_num: int | None = None

    def drafts(self) -> DraftCounts | None:
        """Return the counts of speculation, where a round that is not said to have accepted more accepted all but one.

        SGLang counts verifications; older versions do not count drafted and accepted tokens.
        """
        if not self.spec_verify_ct:
            return None
        accepted = self.spec_accept_token_num
        if accepted is None and self.completion_tokens is not None:
            accepted = max(0, self.completion_tokens - 1 - self.spec_verify_ct)
        return DraftCounts(self.spec_verify_ct, self.spec_draft_token_num, accepted)


class SglangChunk(Struct):
    """The data of one event."""

    text: str = ""
    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    error: JsonObject | str | None = None


@dialects.register("sglang")
class SglangStream(StreamDialect):
    """SGLang's `/generate`: the prompt is continued as it stands."""

    path = "/generate"
    facts_paths = ("/get_model_info", "/get_server_info")

    def body(self, generation: Generation) -> JsonObject:
        sampler = generation.sampler
        sampling = {
            "max_new_tokens": generation.max_tokens,
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "top_k": sampler.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": generation.ignore_eos,
        }
        return {"text": generation.text, "sampling_params": sampling, "stream": True}

    def read(self, data: str) -> StreamEvent:
        chunk = read_event(SglangChunk, data)
        meta = chunk.meta_info or MetaInfo()
        ids = chunk.output_ids
        # A server started with --stream-output sends what is new, any other the whole answer so far.
        is_whole = ids is None or len(ids) == meta.completion_tokens
        return StreamEvent(
            text=chunk.text,
            token_ids=ids,
            counted_by="running usage" if ids is None else "token ids",
            total_tokens=meta.completion_tokens,
            cumulative=is_whole,
            finish_reason=str(meta.finish_reason.get("type")) if meta.finish_reason else None,
            prompt_tokens=meta.prompt_tokens,
            cached_tokens=meta.cached_tokens,
            drafts=meta.drafts(),
            error=error_text(chunk.error),
        )

    def facts(self, *documents: JsonObject | None) -> ServerFacts:
        model = documents[0] or {}
        server = documents[1] or {}
        path = model.get("model_path")
        version = server.get("version")
        return ServerFacts(path and str(path), server.get("context_length"), version and str(version))
