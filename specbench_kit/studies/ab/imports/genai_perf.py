"""NVIDIA GenAI-Perf's `profile_export.json`, AIPerf's predecessor: the chunks of each request, with
their moments.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from specbench_kit.core.foreign_file import WITHOUT_TIMES
from specbench_kit.core.typed_json import decode
from specbench_kit.live.engines.thinking import TextPart, end_of_thinking, thinking_part
from specbench_kit.studies.ab.imports.base import (
    AnswerList,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    chunk_sizes,
    result_files,
)

PER_S = 1e9
"""Nanoseconds, in which the file has its moments."""


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


class RequestInputs(Struct, frozen=True):
    """What a request asked for: a payload of OpenAI's routes, or a text for Triton."""

    payload: object = None
    text_input: object = None


class ChunkUsage(Struct):
    """The counts of tokens in the chunk that states them."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class WrittenText(Struct):
    """What a chunk adds to the answer, in whatever field: a text, or a list of parts."""

    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    text: object = None

    @property
    def thoughts(self) -> str:
        """The thoughts of a reasoning model, which may stand in two fields."""
        return str(self.reasoning_content or self.reasoning or "")

    @property
    def reply(self) -> str:
        """All that was written besides."""
        return f"{self.content or ''}{self.text or ''}"


class ChunkChoice(WrittenText):
    """An answer of a chunk, which holds what was written itself where it has no other object for
    that.
    """

    delta: WrittenText | None = None
    message: WrittenText | None = None


class ResponseChunk(Struct):
    """A part of the answer: an event of a stream, a whole response, a chunk of Triton, or a
    `response` whose lines are such objects.
    """

    response: object = None
    text_output: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None

    def parts(self) -> Iterator["ResponseChunk"]:
        """Yield the objects in the lines of `response`, or the chunk itself without them."""
        if self.response is None:
            yield self
            return
        for line in str(self.response).splitlines():
            text = line.removeprefix("data:").strip()
            if text.startswith("{"):
                yield decode(ResponseChunk, text)

    @property
    def written(self) -> WrittenText:
        """What the chunk adds to the answer."""
        if self.text_output is not None:
            return WrittenText(content=self.text_output)
        nothing = WrittenText()
        choice = next(iter(self.choices or ()), None)
        if choice is None:
            return nothing
        inner = (part for part in (choice.delta, choice.message) if part not in (None, nothing))
        return next(inner, None) or choice


class SentRequest(Struct):
    """One request: when it was sent, and the moments and contents of its chunks."""

    timestamp: int | None = None
    request_inputs: RequestInputs = RequestInputs()
    response_timestamps: list[int] = []
    response_outputs: list[ResponseChunk] = []


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
        str(inputs.payload or inputs.text_input or f"request {number}"),
        f"request {number}",
    )
    if request.timestamp is None or len(request.response_timestamps) != len(
        request.response_outputs
    ):
        collected.leave_out(WITHOUT_TIMES)
        return
    moments_s = []
    texts: list[tuple[str, str]] = []
    usage = ChunkUsage()
    for moment, output in zip(request.response_timestamps, request.response_outputs, strict=True):
        thoughts = reply = ""
        for chunk in output.parts():
            usage = chunk.usage or usage
            thoughts += chunk.written.thoughts
            reply += chunk.written.reply
        if thoughts or reply:
            moments_s.append((moment - request.timestamp) / PER_S)
            texts.append((thoughts, reply))
    tokens = usage.completion_tokens or len(texts)
    sent_s = request.timestamp / PER_S
    if not texts:
        collected.add_failure(names, sent_s, "no text")
        return
    parts = [
        TextPart(moment_s, *text, size)
        for moment_s, text, size in zip(
            moments_s, texts, chunk_sizes(tokens, len(texts)), strict=True
        )
    ]
    end = end_of_thinking(parts)
    collected.add(
        names,
        sent_s,
        moments_s,
        tokens,
        "".join(thoughts + reply for thoughts, reply in texts),
        usage.prompt_tokens,
        None if end is None else thinking_part(parts, end),
    )
