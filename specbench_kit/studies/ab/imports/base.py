"""The contract of a result file that holds the times of single requests."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from msgspec import UNSET

from specbench_kit.core.foreign_file import FAILED, FileReading
from specbench_kit.core.registry import Registry
from specbench_kit.live.engines.answers import (
    Burst,
    CountedBy,
    StreamedAnswer,
    ThinkingPart,
    divided,
)

AT_ZERO = "with a time of 0 to the first token"


@dataclass(frozen=True, slots=True)
class ImportedAnswer:
    """One request: what identifies its prompt, when it was sent, and its answer or its error.

    `prompts` holds identities of the prompt, the best first; a name that a tool makes up anew in each run finds no
    partner, and then the next one counts, such as the position of the request.
    """

    prompts: tuple[str, ...]
    sent_s: float
    answer: StreamedAnswer | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedLoad:
    """The requests of one load; its label is empty if the file does not say what the load was.

    `states_starts` is False where the file does not say when requests were sent, and it follows from their order.
    """

    label: str
    answers: Sequence[ImportedAnswer]
    states_starts: bool = True


@dataclass(frozen=True, slots=True)
class ImportedResults:
    """The loads of a file, the units of its times, and the requests that were left out, counted by
    reason.

    `notes` are lines that a reader of the numbers must know.
    """

    loads: Sequence[ImportedLoad]
    units: str
    left_out: Mapping[str, int]
    notes: Sequence[str] = ()


@dataclass(slots=True)
class AnswerList:
    """The answers of a load while they are read, and how many requests have none and why."""

    answers: list[ImportedAnswer] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def leave_out(self, reason: str) -> None:
        """Count a request that does not belong to the load, or of which nothing is known."""
        self.left_out[reason] += 1

    def add_failure(
        self, prompts: tuple[str, ...], sent_s: float | None, error: str, reason: str = FAILED
    ) -> None:
        """Add a request that has no answer; without the time when it was sent it is only
        counted.
        """
        self.left_out[reason] += 1
        if sent_s is not None:
            self.answers.append(ImportedAnswer(prompts, sent_s, None, error))

    def add(
        self,
        prompts: tuple[str, ...],
        sent_s: float,
        moments_s: Sequence[float],
        tokens: int,
        text: str | None,
        prompt_tokens: int | None,
        thinking: ThinkingPart | None = None,
    ) -> None:
        """Add an answer whose chunks arrived at these moments after it was asked for.

        No token arrives when it is asked for: a first moment of 0 is what tools write where none
        arrived.
        """
        if tokens < 1:
            self.add_failure(prompts, sent_s, "no token")
        elif not moments_s or moments_s[0] <= 0:
            self.add_failure(prompts, sent_s, "no time of a first token", AT_ZERO)
        else:
            answer = timed_answer(moments_s, tokens, text, prompt_tokens, thinking)
            self.answers.append(ImportedAnswer(prompts, sent_s, answer))


class ResultFile(ABC):
    """One tool's format."""

    tool: ClassVar[str]
    """The name of the tool."""
    note: ClassVar[str] = ""
    """What a reader of the numbers must know."""

    @abstractmethod
    def recognises(self, path: Path, content: str) -> bool:
        """Return True if the file's text is in this format."""

    @abstractmethod
    def read(self, path: Path, content: str) -> ImportedResults:
        """Return the loads of a file; raise ValueError if something is missing."""


result_files: Registry[type[ResultFile]] = Registry(
    "result file", "specbench_kit.studies.ab.imports"
)


def recognised(path: Path, content: str) -> ResultFile | None:
    """Return the format of a file's text, or None if no tool is known that writes such files."""
    return next(
        (
            kind
            for kind in (kind() for kind in result_files.all().values())
            if kind.recognises(path, content)
        ),
        None,
    )


def reading_of(path: Path, kind: ResultFile, results: ImportedResults) -> FileReading:
    """Return what a file was taken for, and what is doubtful in it."""
    answered = sum(answer.answer is not None for load in results.loads for answer in load.answers)
    doubts = []
    if at_zero := results.left_out.get(AT_ZERO, 0):
        of_all = answered + at_zero
        doubts.append(
            f"{at_zero:,} of {of_all:,} answers {AT_ZERO}: no token came, and they count as failed."
        )
    return FileReading(
        path.name,
        f"results of {kind.tool}, {results.units}",
        answered,
        left_out=results.left_out,
        doubts=doubts,
    )


def timed_answer(
    moments_s: Sequence[float],
    tokens: int,
    text: str | None,
    prompt_tokens: int | None,
    thinking: ThinkingPart | None = None,
) -> StreamedAnswer:
    """Return an answer of so many tokens whose chunks arrived at these moments after it was asked
    for.

    The first token came with the first chunk and the last one with the last, whichever chunks held
    none between them.
    """
    if any(after_s < before_s for before_s, after_s in pairwise(moments_s)):
        raise ValueError("the times of an answer's chunks fall")
    counted_by: CountedBy = "one per chunk" if tokens == len(moments_s) else "usage at the end"
    bursts = [
        Burst(at_s, size)
        for at_s, size in zip(moments_s, chunk_sizes(tokens, len(moments_s)), strict=True)
    ]
    return StreamedAnswer(
        text,
        [burst for burst in bursts if burst.tokens or burst is bursts[-1]],
        counted_by,
        prompt_tokens=prompt_tokens,
        thinking=thinking or UNSET,
    )


def chunk_sizes(tokens: int, chunks: int) -> list[int]:
    """Return the tokens of each chunk, spread evenly; if there are more chunks, the first and the
    last have one.
    """
    if tokens >= chunks:
        return divided(tokens, [1] * chunks)
    ends = [(tokens - 1) * number // (chunks - 1) for number in range(chunks)]
    return [1, *(after - before for before, after in pairwise(ends))]
