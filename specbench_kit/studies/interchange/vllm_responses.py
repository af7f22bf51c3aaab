"""vLLM's responses with what was accepted in each step of a request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.rows import read_rows
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats
from specbench_kit.studies.interchange.verifications import VerifiedRequest, read_acceptance, trace_of

Fields = Mapping[str, Any]


@formats.register("vllm-responses")
class VLLMResponses(Format):
    """Responses, or last chunks of streams, of a server with `--per-request-spec-decode-metrics detailed`.

    `metrics.speculative_decoding` of vLLM from pull request 48915 on; vLLM calls its shape experimental.
    """

    summary = "responses of vLLM with acceptance per request, JSONL with one response per line, for traces"
    tool = "vLLM"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        requests = [found for place, row in read_rows(path) if (found := _told(place, row))]
        if not requests:
            raise SkitError(
                f"{path} holds no response with metrics.speculative_decoding: run the server with "
                "--per-request-spec-decode-metrics detailed, and ask for include_usage where answers are streamed"
            )
        return trace_of(requests)


def _told(place: str, row: Fields) -> VerifiedRequest | None:
    try:
        acceptance = (row.get("metrics") or {}).get("speculative_decoding")
        if not acceptance:
            return None
        usage = row["usage"]
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        output = usage.get("completion_tokens", usage.get("output_tokens"))
        return read_acceptance(str(row["id"]), prompt, output, acceptance)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SkitError(f"{place}: not a response of vLLM ({reason})") from error
