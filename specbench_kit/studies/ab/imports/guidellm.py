"""GuideLLM's `benchmarks.json`: several loads, each with its requests."""

from pathlib import Path

from msgspec import Struct

from specbench_kit.core.typed_json import decode
from specbench_kit.studies.ab.imports.base import (
    ImportedAnswer,
    ImportedLoad,
    ResultFile,
    result_files,
    timed_answer,
)


class Strategy(Struct, frozen=True):
    """How requests were sent."""

    type_: str = ""
    streams: int | None = None
    max_concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        """The name of the load."""
        count = 1 if self.type_ == "synchronous" else self.streams or self.max_concurrency
        return f"rate {self.rate:g}" if self.rate else f"concurrency {count}" if count else self.type_


class HasStrategy(Struct, frozen=True):
    """The settings of a benchmark; their place in the file differs between versions."""

    strategy: Strategy | None = None


class GuideTimings(Struct, frozen=True):
    """The moments of a request, in seconds of the clock."""

    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    token_iterations: int = 0


class GuideInfo(Struct, frozen=True):
    """What the scheduler knows of a request."""

    timings: GuideTimings = GuideTimings()
    error: str | None = None


class GuideRequest(Struct):
    """One request: newer versions have its moments in `info.timings`, older ones beside the other fields."""

    request_args: str | None = None
    prompt: str | None = None
    output: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    info: GuideInfo = GuideInfo()
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    error: str | None = None


class GuideRequests(Struct):
    """The requests of a benchmark by what became of them; those that its end cut off do not count."""

    successful: list[GuideRequest] = []
    errored: list[GuideRequest] = []


class GuideBenchmark(Struct):
    """One load."""

    requests: GuideRequests
    config: HasStrategy = HasStrategy()
    args: HasStrategy = HasStrategy()
    scheduler: HasStrategy = HasStrategy()


class GuideReport(Struct):
    """The file."""

    benchmarks: list[GuideBenchmark]


@result_files.register("guidellm")
class GuideLLM(ResultFile):
    """Every benchmark of a file is a load; a request is known by its prompt."""

    tool = "GuideLLM"
    note = "GuideLLM records no time of single tokens: the ITL of a request is its mean."

    def recognises(self, path: Path, content: str) -> bool:
        return content.lstrip().startswith("{") and '"benchmarks"' in content

    def read(self, path: Path, content: str) -> list[ImportedLoad]:
        loads = []
        for benchmark in decode(GuideReport, content).benchmarks:
            strategies = [part.strategy for part in (benchmark.config, benchmark.args, benchmark.scheduler)]
            strategy = next((found for found in strategies if found is not None), Strategy())
            requests = [*benchmark.requests.successful, *benchmark.requests.errored]
            failed = len(benchmark.requests.successful)
            answers = [_answer(number, entry, number >= failed) for number, entry in enumerate(requests)]
            loads.append(ImportedLoad(strategy.label, answers))
        return loads


def _answer(number: int, request: GuideRequest, has_failed: bool) -> ImportedAnswer:
    timings = request.info.timings
    sent_s = timings.request_start if timings.request_start is not None else request.start_time
    first_s = timings.first_token_iteration or request.first_token_time
    last_s = timings.last_token_iteration or request.last_token_time
    names = (request.request_args or request.prompt or f"request {number}", f"request {number}")
    if has_failed:
        return ImportedAnswer(names, sent_s or 0.0, None, request.info.error or request.error or "failed")
    if sent_s is None or first_s is None or last_s is None or request.output_tokens is None:
        raise ValueError("a request has no times or no number of tokens: run GuideLLM with all requests in the output")
    chunks = max(1 if request.output_tokens == 1 else 2, timings.token_iterations or request.output_tokens)
    step_s = (last_s - first_s) / max(1, chunks - 1)
    moments_s = [first_s - sent_s + step_s * place for place in range(chunks)]
    return ImportedAnswer(
        names, sent_s, timed_answer(moments_s, request.output_tokens, request.output, request.prompt_tokens)
    )
