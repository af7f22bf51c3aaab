"""Results of `vllm bench serve --save-result --save-detailed` and of SGLang's `bench_serving
--output-details`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapreplace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from msgspec import Struct

from specbench_kit.core.typed_json import Number, convert, whole_number
from specbench_kit.live.engines.thinking import thinking_of_text
from specbench_kit.studies.ab.imports.base import (
    AnswerList,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    result_files,
)

BETWEEN_S = 1e-6
"""Between the end of a request and the next one in its place, so that rounding never makes the two
overlap.
"""
NO_GAP = 0.01
"""Share of TTFT within which the chunk with the role comes together with the first token."""


class VllmBenchResult(Struct):
    """The result of one load, as far as a comparison needs it: one entry per request in each
    list.
    """

    ttfts: list[Number]
    itls: list[list[Number]]
    output_lens: list[int]
    input_lens: list[int]
    start_times: list[Number] | None = None
    generated_texts: list[str] | None = None
    errors: list[str | None] | None = None
    max_concurrency: int | None = None
    request_rate: float | str | None = None

    backend: str = ""
    endpoint_type: str = ""

    @property
    def asks_chat(self) -> bool:
        """True for results of the chat endpoint, whose first chunk names the role and holds no
        token.
        """
        return "chat" in self.backend or "chat" in self.endpoint_type


@result_files.register("vllm-bench")
class VllmBench(ResultFile):
    """A load for each result of a file, to which later runs may have appended theirs.

    A request is known by its position, which is the same in both runs with equal seeds. TTFT and
    end-to-end time are those of the file itself, whatever its chunks hold.
    """

    tool = "vllm bench serve"
    counts_role: ClassVar[bool] = True
    """True if a chunk without text is timed too, as the one that names the role."""
    detailed: ClassVar[str] = "--save-result --save-detailed"
    """The options with which the tool writes single requests."""

    def recognises(self, path: Path, content: str) -> bool:
        return _is_result(content) and not _is_sglang(content)

    def read(self, path: Path, content: str) -> ImportedResults:
        loads = []
        notes = []
        left_out = Counter[str]()
        runs = Counter[str]()
        for document in _documents(content):
            if isinstance(document, dict) and "ttfts" not in document:
                raise ValueError(
                    f"it holds no single requests: run {self.tool} again with {self.detailed}"
                )
            result = convert(VllmBenchResult, document)
            label = _label(result)
            runs[label] += 1
            # Runs of one load are loads of their own, since each has a clock of its own.
            again = f", run {runs[label]}" if label and runs[label] > 1 else ""
            collected = _answers(result)
            left_out += collected.left_out
            notes += _role_chunks(result, path.name) if self.counts_role else []
            loads.append(
                ImportedLoad(
                    label + again, collected.answers, states_starts=bool(result.start_times)
                )
            )
        return ImportedResults(loads, "times in seconds", left_out, notes)


def _answers(result: VllmBenchResult) -> AnswerList:
    count = len(result.ttfts)
    texts: Sequence[str | None] = result.generated_texts or [None] * count
    errors = result.errors or [""] * count
    columns = zip(
        result.start_times if result.start_times is not None else _start_times(result),
        result.ttfts,
        result.itls,
        result.output_lens,
        result.input_lens,
        texts,
        errors,
        strict=True,
    )
    collected = AnswerList()
    for number, (sent_s, ttft_s, gaps_s, tokens, prompt_tokens, text, error) in enumerate(columns):
        names = (f"request {number}",)
        if error or not tokens:
            collected.add_failure(names, sent_s, error or "no answer")
        else:
            moments_s = list(accumulate(gaps_s, initial=ttft_s))
            thinking = thinking_of_text(text, tokens)
            collected.add(names, sent_s, moments_s, tokens, text, prompt_tokens, thinking)
    return collected


def _role_chunks(result: VllmBenchResult, name: str) -> list[str]:
    """Return how far TTFT may be off, as the benchmark takes the chunk with the role for the first
    token.
    """
    gaps_s = [
        gaps_s[0]
        for gaps_s, tokens, ttft_s in zip(
            result.itls, result.output_lens, result.ttfts, strict=True
        )
        if gaps_s and ttft_s > 0 and len(gaps_s) >= tokens > 0
    ]
    if not result.asks_chat or not gaps_s or fmean(gaps_s) < NO_GAP * fmean(result.ttfts):
        return []
    return [
        f"ROLE CHUNKS: {len(gaps_s):,} answers of {name} have more chunks than tokens, since the chat benchmark takes "
        f"the chunk that names the role for the first token. The next one came {1e3 * fmean(gaps_s):,.3g} ms later on "
        "average: by so much may TTFT be too short, and the time of the tokens after it too long."
    ]


@result_files.register("sglang-bench")
class SGLangBench(VllmBench):
    """The same lists; SGLang appends every run to its file, a line each."""

    tool = "SGLang's bench_serving"
    counts_role = False
    detailed = "--output-details"

    def recognises(self, path: Path, content: str) -> bool:
        return _is_result(content) and _is_sglang(content)


def _is_result(content: str) -> bool:
    """Return True for results with single requests, and for those that hold only averages."""
    return content.lstrip().startswith("{") and (
        '"ttfts"' in content or '"mean_ttft_ms"' in content
    )


def _is_sglang(content: str) -> bool:
    return '"backend": "sglang' in content


def _documents(content: str) -> Iterator[Any]:
    """Yield the JSON documents that stand one after the other; both tools write Infinity where a
    rate has no limit.
    """
    decoder = json.JSONDecoder(parse_int=whole_number)
    position = 0
    while content := content[position:].lstrip():
        try:
            document, position = decoder.raw_decode(content)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        yield document


def _start_times(result: VllmBenchResult) -> list[float]:
    """Return when requests were sent, for results that do not say so, as older versions of both
    tools.

    Without a rate, each request waits for the first place in flight that becomes free.
    """
    if isfinite(_rate(result)) or (result.max_concurrency or 0) < 1:
        raise ValueError(
            "it has no start_times, which are needed to tell how many requests were in flight: use a newer version, "
            "or --max-concurrency without a rate"
        )
    free_s = [0.0] * min(result.max_concurrency or 1, len(result.ttfts))
    starts_s = []
    for ttft_s, gaps_s in zip(result.ttfts, result.itls, strict=True):
        starts_s.append(free_s[0])
        heapreplace(free_s, free_s[0] + ttft_s + sum(gaps_s) + BETWEEN_S)
    return starts_s


def _rate(result: VllmBenchResult) -> float:
    try:
        return float(result.request_rate) if result.request_rate is not None else float("inf")
    except ValueError:
        return float("inf")


def _label(result: VllmBenchResult) -> str:
    rate = _rate(result)
    parts = [f"rate {rate:g}"] if isfinite(rate) else []
    return ", ".join(
        [*parts, *([f"concurrency {result.max_concurrency}"] if result.max_concurrency else [])]
    )
