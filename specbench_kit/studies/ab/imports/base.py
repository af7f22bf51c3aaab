"""The contract of a result file that holds the times of single requests."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specbench_kit.core.registry import Registry
from specbench_kit.metrics.ab.answers import Burst, CountedBy, StreamedAnswer, divided


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
    """The requests of one load; its label is empty if the file does not say what the load was."""

    label: str
    answers: Sequence[ImportedAnswer]


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
    def read(self, path: Path, content: str) -> list[ImportedLoad]:
        """Return the loads of a file; raise ValueError if something is missing."""


result_files: Registry[type[ResultFile]] = Registry("result file", "specbench_kit.studies.ab.imports")


def timed_answer(
    moments_s: Sequence[float], tokens: int, text: str | None, prompt_tokens: int | None
) -> StreamedAnswer:
    """Return an answer of so many tokens whose chunks arrived at these moments after it was asked for."""
    if not moments_s or tokens < 1:
        raise ValueError("a request that succeeded has no token, or no time of its first token")
    # Chunks of no token, at the end of a stream, have nothing to divide.
    moments = list(moments_s)[:tokens] if tokens < len(moments_s) else list(moments_s)
    counted_by: CountedBy = "one per chunk" if tokens == len(moments_s) else "usage at the end"
    sizes = divided(tokens, [1] * len(moments))
    bursts = [Burst(at_s, size) for at_s, size in zip(moments, sizes, strict=True)]
    return StreamedAnswer(text, bursts, counted_by, prompt_tokens=prompt_tokens)
