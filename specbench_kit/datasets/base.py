"""The dataset contract: where rows come from and how a row becomes a prompt."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from specbench_kit.core.registry import Registry
from specbench_kit.datasets.answers import Gold

Source = Literal["local", "hub", "sample", "file"]
FINGERPRINT_DIGITS = 16
RESERVED, RESERVED_SHARE = "reserved", 0.3


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to decode: its user turns, in order.

    `chat` says that the turns are messages for a chat template; otherwise the single turn is a text that the
    model continues. `gold` are its right answers, where the dataset has any.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    chat: bool = True
    gold: Gold | None = None

    @property
    def fingerprint(self) -> str:
        """The same for the same text in any dataset."""
        return hashlib.sha256(json.dumps(self.turns).encode()).hexdigest()[:FINGERPRINT_DIGITS]

    @property
    def is_reserved(self) -> bool:
        """Whether it is in the part that training takes of a dataset without a split for it."""
        return int(self.fingerprint, 16) / 16.0**FINGERPRINT_DIGITS < RESERVED_SHARE


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


@dataclass(frozen=True, slots=True)
class TrainSplit:
    """Where the train split of a dataset lies, below the data directory and on the hub."""

    local: str
    hub: Hub


class Dataset(ABC):
    """One file per dataset: names its sources and turns a row into a prompt."""

    summary: ClassVar[str]
    """One line: what the prompts are."""
    paper: ClassVar[str]
    """Who evaluates on it, with the section or table."""
    local: ClassVar[str | None] = None
    """Path below the data directory, or None where no local layout is defined."""
    hub: ClassVar[Hub | None]
    """None where only a local copy will do."""
    train: ClassVar["TrainSplit | None"] = None
    """Prompts that nobody is judged on."""
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
    part: str | None = None
    """`train` or, where there is no such split, `reserved`, where only prompts to train on were asked for."""
    left_out: tuple[str, ...] = ()
    """Fingerprints of prompts that were not drawn from, since a method learned from them."""
    pool: tuple[Prompt, ...] = ()
    """All that the chosen ones were drawn from."""

    def describe(self) -> dict[str, Any]:
        """What a run records of it."""
        fields = ("name", "source", "location", "digest", "total")
        further = {"part": self.part, "left_out": list(self.left_out)}
        return {
            **{name: getattr(self, name) for name in fields},
            "count": len(self.prompts),
            **{name: value for name, value in further.items() if value},
        }


datasets: Registry[type[Dataset]] = Registry("dataset", "specbench_kit.datasets")
