"""The stream of Hugging Face's text-generation-inference, which has one event per token."""

from msgspec import Struct

from specbench_kit.core.typed_json import convert
from specbench_kit.live.engines.base import (
    ErrorDocument,
    Generation,
    ServerDialect,
    ServerDocument,
    ServerFacts,
    StreamEvent,
    dialects,
    error_text,
    read_event,
)
from specbench_kit.live.engines.request_fields import RequestBody


class TgiToken(Struct):
    """A token of the answer; a special one, such as the end of the sequence, is not part of the
    text.
    """

    id: int
    text: str = ""
    special: bool = False


class TgiDetails(Struct):
    """What the last event says of the answer."""

    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None


class TgiInfo(Struct):
    """The document `/info`, by which the server describes itself."""

    model_id: str | None = None
    max_total_tokens: int | None = None
    version: str | None = None


class TgiChunk(Struct):
    """The data of one event."""

    token: TgiToken | None = None
    details: TgiDetails | None = None
    error: ErrorDocument = None


@dialects.register("tgi")
class TgiStream(ServerDialect):
    """text-generation-inference's `/generate_stream`: the prompt is continued as it stands."""

    path = "/generate_stream"
    facts_paths = ("/info",)
    may_ignore_eos = False
    takes_schema = True

    def body(self, generation: Generation) -> RequestBody:
        sampler = generation.sampler
        # TGI refuses the values that switch a rule off.
        cut = {
            **({"top_p": sampler.top_p} if sampler.top_p < 1 else {}),
            **({"top_k": sampler.top_k} if sampler.top_k else {}),
        }
        parameters = {
            "max_new_tokens": generation.max_tokens,
            "do_sample": not sampler.greedy,
            "details": True,
            "repetition_penalty": 1.0,
            **(
                {"grammar": {"type": "json", "value": generation.schema_object}}
                if generation.schema
                else {}
            ),
            **(
                {}
                if sampler.greedy
                else {"temperature": sampler.temperature, "seed": generation.seed, **cut}
            ),
        }
        return {"inputs": generation.text, "parameters": parameters}

    def read(self, data: str) -> StreamEvent:
        chunk = read_event(TgiChunk, data)
        token = chunk.token
        details = chunk.details or TgiDetails()
        return StreamEvent(
            text=token.text if token and not token.special else "",
            token_ids=[token.id] if token else [],
            tokens=1 if token else 0,
            counted_by="token ids",
            total_tokens=details.generated_tokens,
            finish_reason={"eos_token": "stop", "stop_sequence": "stop"}.get(
                details.finish_reason or "", details.finish_reason
            ),
            prompt_tokens=details.input_length,
            error=error_text(chunk.error),
        )

    def facts(self, *documents: ServerDocument | None) -> ServerFacts:
        info = convert(TgiInfo, documents[0])
        return ServerFacts(info.model_id, info.max_total_tokens, info.version)
