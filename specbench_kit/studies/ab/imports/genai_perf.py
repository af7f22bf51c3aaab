"""NVIDIA GenAI-Perf's `profile_export.json`, AIPerf's predecessor: the chunks of each request, with
their moments.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from specbench_kit.core.foreign_file import WITHOUT_TIMES
from specbench_kit.core.typed_json import JsonObject, decode, parse
from specbench_kit.studies.ab.imports.base import (
    AnswerList,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    result_files,
)

PER_S = 1e9
"""Nanoseconds, in which the file has its moments."""
TEXTS = ("content", "reasoning_content", "reasoning", "text")
"""Fields of a chunk that hold what was written."""


class LoadMode(Struct, frozen=True):
    """How requests were sent: `concurrency` or `request_rate`, and how many."""

    mode: str = ""
    value: float | None = None

    @property
    def label(self) -> str:
        """The name of the load."""
        if self.value is None:
            return ""
        return f"{'rate' if 'rate' in self.mode else 'concurrency'} {self.value:g}"


class SentRequest(Struct):
    """One request: when it was sent, and the moments and contents of its chunks."""

    timestamp: int | None = None
    request_inputs: JsonObject = {}
    response_timestamps: list[int] = []
    response_outputs: list[JsonObject] = []


class Experiment(Struct):
    """One load."""

    requests: list[SentRequest]
    experiment: LoadMode = LoadMode()


class ProfileExport(Struct):
    """The file."""

    experiments: list[Experiment]


@result_files.register("genai-perf")
class GenAIPerf(ResultFile):
    """Every experiment is a load; a request is known by its input.

    The file holds no number of tokens: it is that of `usage`, or else one token per chunk with
    text.
    """

    tool = "GenAI-Perf"
    note = "GenAI-Perf records no number of tokens: without usage in its chunks, each chunk with text counts as one."

    def recognises(self, path: Path, content: str) -> bool:
        return (
            content.lstrip().startswith("{")
            and '"experiments"' in content
            and '"response_timestamps"' in content
        )

    def read(self, path: Path, content: str) -> ImportedResults:
        left_out = AnswerList().left_out
        loads = []
        for experiment in decode(ProfileExport, content).experiments:
            collected = AnswerList()
            for number, request in enumerate(experiment.requests):
                try:
                    _add(number, request, collected)
                except ValueError as error:
                    raise ValueError(f"request {number}: {error}") from error
            left_out += collected.left_out
            loads.append(ImportedLoad(experiment.experiment.label, collected.answers))
        return ImportedResults(loads, "times in nanoseconds", left_out)


def _add(number: int, request: SentRequest, collected: AnswerList) -> None:
    inputs = request.request_inputs
    names = (
        str(inputs.get("payload") or inputs.get("text_input") or f"request {number}"),
        f"request {number}",
    )
    if request.timestamp is None or len(request.response_timestamps) != len(
        request.response_outputs
    ):
        collected.leave_out(WITHOUT_TIMES)
        return
    moments_s = []
    texts = []
    usage: Mapping[str, Any] = {}
    for moment, output in zip(request.response_timestamps, request.response_outputs, strict=True):
        written = ""
        for chunk in _chunks(output):
            usage = chunk.get("usage") or usage
            written += _text(chunk)
        if written:
            moments_s.append((moment - request.timestamp) / PER_S)
            texts.append(written)
    tokens = usage.get("completion_tokens") or len(texts)
    sent_s = request.timestamp / PER_S
    if not texts:
        collected.add_failure(names, sent_s, "no text")
        return
    collected.add(names, sent_s, moments_s, int(tokens), "".join(texts), usage.get("prompt_tokens"))


def _chunks(output: JsonObject) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a chunk: events of a stream, a whole response, or a chunk of
    Triton.
    """
    if "response" not in output:
        yield output
        return
    for line in str(output["response"]).splitlines():
        text = line.removeprefix("data:").strip()
        if text.startswith("{") and isinstance(chunk := parse(text), dict):
            yield chunk


def _text(chunk: Mapping[str, Any]) -> str:
    """Return what a chunk adds to the answer, whatever field holds it."""
    if "text_output" in chunk:
        return str(chunk["text_output"] or "")
    choice = next(iter(chunk.get("choices") or ()), None)
    if not isinstance(choice, dict):
        return ""
    content = choice.get("delta") or choice.get("message") or choice
    return (
        "".join(str(content.get(name) or "") for name in TEXTS) if isinstance(content, dict) else ""
    )
