"""The stream of Hugging Face's text-generation-inference, which has one event per token."""

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.engines.base import (
    Generation,
    ServerDialect,
    ServerFacts,
    StreamEvent,
    dialects,
    error_text,
    read_event,
)


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


class TgiChunk(Struct):
    """The data of one event."""

    token: TgiToken | None = None
    details: TgiDetails | None = None
    error: JsonObject | str | None = None


@dialects.register("tgi")
class TgiStream(ServerDialect):
    """text-generation-inference's `/generate_stream`: the prompt is continued as it stands."""

    path = "/generate_stream"
    facts_paths = ("/info",)
    may_ignore_eos = False

    def body(self, generation: Generation) -> JsonObject:
        sampler = generation.sampler
        parameters: dict[str, object] = {
            "max_new_tokens": generation.max_tokens,
            "do_sample": not sampler.greedy,
            "details": True,
            "repetition_penalty": 1.0,
        }
        if not sampler.greedy:
            # TGI refuses the values that switch a rule off.
            parameters |= {"temperature": sampler.temperature, "seed": generation.seed}
            parameters |= {"top_p": sampler.top_p} if sampler.top_p < 1 else {}
            parameters |= {"top_k": sampler.top_k} if sampler.top_k else {}
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

    def facts(self, *documents: JsonObject | None) -> ServerFacts:
        info = documents[0] or {}
        model = info.get("model_id")
        version = info.get("version")
        return ServerFacts(
            model and str(model), info.get("max_total_tokens"), version and str(version)
        )
