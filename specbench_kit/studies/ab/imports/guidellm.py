"""GuideLLM's `benchmarks.json`: several loads, each with its requests."""

from pathlib import Path

from msgspec import Struct

from specbench_kit.core.foreign_file import COOL_DOWN, CUT_OFF, WARM_UP, WITHOUT_TIMES
from specbench_kit.core.typed_json import decode
from specbench_kit.live.engines.answers import ThinkingPart
from specbench_kit.live.engines.thinking import thinking_of_text, untimed_part
from specbench_kit.studies.ab.imports.base import (
    AnswerList,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    result_files,
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
        return (
            f"rate {self.rate:g}" if self.rate else f"concurrency {count}" if count else self.type_
        )


class HasStrategy(Struct, frozen=True):
    """The settings of a benchmark; their place in the file differs between versions."""

    strategy: Strategy | None = None


class GuideTimings(Struct, frozen=True):
    """The moments of a request, in seconds of the clock; one whose connection failed has no
    `request_start`.
    """

    targeted_start: float | None = None
    resolve_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    token_iterations: int = 0


class GuideInfo(Struct, frozen=True):
    """What the scheduler knows of a request."""

    timings: GuideTimings = GuideTimings()
    error: str | None = None


class GuideRequest(Struct):
    """One request: newer versions have its moments in `info.timings`, older ones beside the other
    fields.
    """

    request_args: str | None = None
    prompt: str | None = None
    output: str | None = None
    reasoning_output: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    info: GuideInfo = GuideInfo()
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    error: str | None = None

    @property
    def sent_s(self) -> float | None:
        """When the request was sent."""
        start_s = self.info.timings.request_start
        return self.start_time if start_s is None else start_s

    @property
    def begun_s(self) -> float | None:
        """When the request was sent, or taken up, or to be sent if it never came so far."""
        timings = self.info.timings
        known = (self.sent_s, timings.resolve_start, timings.targeted_start)
        return next((moment_s for moment_s in known if moment_s is not None), None)

    @property
    def tokens(self) -> int | None:
        """The length of the output; one per iteration where the server did not say, as GuideLLM
        counts it.
        """
        return (
            self.info.timings.token_iterations or None
            if self.output_tokens is None
            else self.output_tokens
        )

    @property
    def text(self) -> str | None:
        """Everything that was written."""
        parts = [part for part in (self.reasoning_output, self.output) if part is not None]
        return "".join(parts) if parts else None

    def thinking(self, tokens: int) -> ThinkingPart | None:
        """Return the thinking part of an output of so many tokens; its times are not in the
        file.
        """
        if self.reasoning_output and self.reasoning_output.strip():
            reply = (self.output or "").lstrip()
            return untimed_part(len(self.text or "") - len(reply), len(reply), tokens)
        return thinking_of_text(self.output, tokens)


class GuideRequests(Struct):
    """The requests of a benchmark by what became of them; those that its end cut off do not
    count.
    """

    successful: list[GuideRequest] | None = None
    incomplete: list[GuideRequest] | None = None
    errored: list[GuideRequest] | None = None


class SchedulerMetrics(Struct, frozen=True):
    """The moments between which requests count, in seconds of the clock; -1 where there is none."""

    measure_start_time: float = -1.0
    measure_end_time: float = -1.0

    def outside(self, sent_s: float) -> str | None:
        """Return the phase that a request was sent in, if it is not the measured one."""
        start_s, end_s = self.measure_start_time, self.measure_end_time
        if start_s > 0 and sent_s < start_s:
            return WARM_UP
        return COOL_DOWN if end_s > max(start_s, 0) and sent_s > end_s else None


class GuideBenchmark(Struct):
    """One load."""

    requests: GuideRequests
    config: HasStrategy = HasStrategy()
    args: HasStrategy = HasStrategy()
    scheduler: HasStrategy = HasStrategy()
    scheduler_metrics: SchedulerMetrics = SchedulerMetrics()

    @property
    def label(self) -> str:
        """The name of the load."""
        strategies = [part.strategy for part in (self.config, self.args, self.scheduler)]
        return next((found for found in strategies if found is not None), Strategy()).label


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

    def read(self, path: Path, content: str) -> ImportedResults:
        left_out = AnswerList().left_out
        loads = []
        for benchmark in decode(GuideReport, content).benchmarks:
            collected = _answers(benchmark)
            left_out += collected.left_out
            loads.append(ImportedLoad(benchmark.label, collected.answers))
        if left_out[WITHOUT_TIMES] and not any(load.answers for load in loads):
            raise ValueError(
                "no request has the time of its first token and its number of tokens: stream the answers"
            )
        return ImportedResults(loads, "times in seconds", left_out)


def _answers(benchmark: GuideBenchmark) -> AnswerList:
    """Return the requests that were sent while the benchmark measured."""
    collected = AnswerList()
    successful = benchmark.requests.successful or []
    errored = benchmark.requests.errored or []
    for number, request in enumerate([*successful, *errored]):
        begun_s = request.begun_s
        if begun_s is not None and (phase := benchmark.scheduler_metrics.outside(begun_s)):
            collected.leave_out(phase)
            continue
        names = (request.request_args or request.prompt or f"request {number}", f"request {number}")
        if number < len(successful):
            _add(names, request, collected)
        else:
            collected.add_failure(names, begun_s, request.info.error or request.error or "failed")
    for _ in benchmark.requests.incomplete or []:
        collected.leave_out(CUT_OFF)
    return collected


def _add(names: tuple[str, ...], request: GuideRequest, collected: AnswerList) -> None:
    timings = request.info.timings
    sent_s = request.sent_s
    first_s = timings.first_token_iteration or request.first_token_time
    last_s = timings.last_token_iteration or request.last_token_time
    tokens = request.tokens
    if sent_s is None or first_s is None or last_s is None or tokens is None:
        collected.leave_out(WITHOUT_TIMES)
        return
    chunks = max(1 if tokens == 1 else 2, timings.token_iterations or tokens)
    step_s = (last_s - first_s) / max(1, chunks - 1)
    moments_s = [first_s - sent_s + step_s * place for place in range(chunks)]
    collected.add(
        names,
        sent_s,
        moments_s,
        tokens,
        request.text,
        request.prompt_tokens,
        request.thinking(tokens),
    )
