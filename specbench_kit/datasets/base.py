"""The dataset contract: where rows come from and how a row becomes a prompt."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from specbench_kit.registry import Registry

Source = Literal["local", "hub", "sample", "file"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to decode: its user turns, in order.

    `chat` says that the turns are messages for a chat template; otherwise the single turn is a text that the
    model continues.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    chat: bool = True


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a dataset lies on the Hugging Face hub.

    `stream` reads only that many first rows, for datasets whose other splits are too large to download. `url` is a
    JSONL file that is read instead where the hub holds no copy; `path` then names its repository.
    """

    path: str
    split: str
    config: str | None = None
    stream: int | None = None
    url: str | None = None


class Dataset(ABC):
    """One file per dataset: names its sources and turns a row into a prompt."""

    summary: ClassVar[str]
    """One line: what the prompts are."""
    paper: ClassVar[str]
    """Who evaluates on it, with the section or table."""
    local: ClassVar[str | None] = None
    """Path below the data directory, or None where no local layout is defined."""
    hub: ClassVar[Hub]
    sample: ClassVar[str]
    """Name of the bundled sample that stands in (gsm8k, chat, code, translation or summarisation)."""

    @abstractmethod
    def prompt(self, row: dict[str, Any], index: int) -> Prompt | None:
        """The prompt of one row, or None for a row that the papers leave out."""


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """Prompts with where they came from, as the run records it."""

    name: str
    source: Source
    location: str
    """Relative path, hub id with split, or name of the sample: never an absolute path."""
    digest: str
    """SHA-256 over the chosen prompts, in order."""
    total: int
    """Prompts available before the limit."""
    prompts: tuple[Prompt, ...]
    reason: str | None = None
    """Why a sample stands in."""

    def describe(self) -> dict[str, Any]:
        """What a run records of it."""
        fields = ("name", "source", "location", "digest", "total")
        return {**{name: getattr(self, name) for name in fields}, "count": len(self.prompts)}


datasets: Registry[type[Dataset]] = Registry("dataset", "specbench_kit.datasets")
