"""vLLM's responses with what was accepted in each step of a request."""

from pathlib import Path

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.base import Row
from specbench_kit.datasets.rows import read_rows
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats
from specbench_kit.studies.interchange.verifications import (
    Acceptance,
    VerifiedRequest,
    read_acceptance,
    trace_of,
)


class ResponseUsage(Struct):
    """The token counts of a response, under the names of either API of vLLM."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class ResponseMetrics(Struct):
    """The metrics of a response."""

    speculative_decoding: Acceptance | None = None


class VLLMResponse(Struct):
    """A response of vLLM, as far as it tells of verifications."""

    id: str | int | None = None
    usage: ResponseUsage | None = None
    metrics: ResponseMetrics | None = None


@formats.register("vllm-responses")
class VLLMResponses(Format):
    """Responses, or last chunks of streams, of a server with `--per-request-spec-decode-metrics
    detailed`.

    `metrics.speculative_decoding` of vLLM from pull request 48915 on; vLLM calls its shape experimental.
    """

    summary = "responses of vLLM with acceptance per request, JSONL with one response per line, for traces"
    tool = "vLLM"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        responses = [_read_response(line, row) for line, row in read_rows(path)]
        requests = [request for request in responses if request]
        if not requests:
            raise SkitError(
                f"{path} holds no response with metrics.speculative_decoding: run the server with "
                "--per-request-spec-decode-metrics detailed, and ask for include_usage where answers are streamed"
            )
        return trace_of(
            requests, {"without metrics.speculative_decoding": len(responses) - len(requests)}
        )


def _read_response(line: str, row: Row) -> VerifiedRequest | None:
    """Return the request of a response; None if the response does not tell of verifications."""
    try:
        response = convert(VLLMResponse, row)
        acceptance = response.metrics.speculative_decoding if response.metrics else None
        if acceptance is None or acceptance.says_nothing:
            return None
        if response.id is None or response.usage is None:
            raise ValueError(f"{'id' if response.id is None else 'usage'} is missing")
        usage = response.usage
        prompt = usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        output = usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
        return read_acceptance(str(response.id), prompt, output, acceptance)
    except ValueError as error:
        raise SkitError(f"{line}: not a response of vLLM ({error})") from error
