"""Results of `vllm bench serve --save-result --save-detailed`."""

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
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


class VllmBenchResult(Struct):
    """The file, as far as a comparison needs it: one entry per request in each list."""

    ttfts: list[float]
    itls: list[list[float]]
    output_lens: list[int]
    input_lens: list[int]
    start_times: list[float] | None = None
    generated_texts: list[str] | None = None
    errors: list[str] | None = None
    max_concurrency: int | None = None
    request_rate: float | str | None = None


@result_files.register("vllm-bench")
class VllmBench(ResultFile):
    """One load per file; a request is known by its position, which is the same in both runs with equal seeds."""

    tool = "vllm bench serve"

    def recognises(self, path: Path, content: str) -> bool:
        return content.lstrip().startswith("{") and '"ttfts"' in content

    def read(self, path: Path, content: str) -> list[ImportedLoad]:
        result = decode(VllmBenchResult, content)
        if result.start_times is None:
            raise ValueError("it has no start_times: use a newer vLLM, with --save-detailed")
        count = len(result.ttfts)
        texts: Sequence[str | None] = result.generated_texts or [None] * count
        errors = result.errors or [""] * count
        columns = zip(
            result.start_times,
            result.ttfts,
            result.itls,
            result.output_lens,
            result.input_lens,
            texts,
            errors,
            strict=True,
        )
        answers = []
        for number, (sent_s, ttft_s, gaps_s, tokens, prompt_tokens, text, error) in enumerate(columns):
            answer = None
            if not error and tokens:
                answer = timed_answer(list(accumulate(gaps_s, initial=ttft_s)), tokens, text, prompt_tokens)
            names = (f"request {number}",)
            answers.append(ImportedAnswer(names, sent_s, answer, None if answer else error or "no answer"))
        return [ImportedLoad(_label(result), answers)]


def _label(result: VllmBenchResult) -> str:
    try:
        rate = float(result.request_rate) if result.request_rate is not None else float("inf")
    except ValueError:
        rate = float("inf")
    parts = [f"rate {rate:g}"] if isfinite(rate) else []
    return ", ".join([*parts, *([f"concurrency {result.max_concurrency}"] if result.max_concurrency else [])])
