"""The dataset contract: where the rows come from and how a row becomes a prompt."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import msgspec

from specbench_kit.core.registry import Registry
from specbench_kit.core.repeated_prompts import passes_for, repeated_id
from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.description import DatasetDescription

Source = Literal["local", "hub", "sample", "file", "bundled"]
"""`sample` is a bundled sample that stands in for another dataset, `bundled` a dataset that ships
whole.
"""
Row = dict[str, Any]
"""The columns of one row by name, as its file holds them."""
FINGERPRINT_DIGITS = 16
RESERVED = "reserved"
RESERVED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to decode: its user turns, in order.

    With `chat` the turns are messages for a chat template; otherwise the only turn is a text that
    the model continues. `gold` holds the right answers, where the dataset has any; `system` the
    system's message before the first turn. `dialogue` names the conversation where it is decoded
    several times, under as many ids. `schema` is the JSON schema of the answers, where the row has one.

    In a conversation with tools, `tools` is the JSON of their descriptions as OpenAI's API takes them. Its turns are
    recorded: `script` holds, for each turn, the JSON of the messages that come before the model's answer and after the
    one before, the recorded answer among them, since results of tools belong to the calls that were made then.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    chat: bool = True
    gold: Gold | None = None
    system: str = ""
    dialogue: str = ""
    schema: str = ""
    tools: str = ""
    script: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Return a hash of the text, which is equal for equal text in any dataset (16 hexadecimal
        digits).
        """
        said: Sequence[object] = [self.turns, self.system] if self.system else self.turns
        if self.script or self.tools:
            said = [self.turns, self.system, self.script, self.tools]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:FINGERPRINT_DIGITS]

    @property
    def is_reserved(self) -> bool:
        """Return True for the 30% of the prompts that training takes from a dataset without a train
        split.
        """
        return int(self.fingerprint, 16) / 16.0**FINGERPRINT_DIGITS < RESERVED_SHARE


class Hub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of a dataset on the Hugging Face hub.

    `stream` reads only that many rows from the start, for datasets whose other splits are too large to download.
    `url` is a JSONL file that is read instead where the hub holds no copy; `path` then names its repository.
    """

    path: str
    split: str
    config: str | None = None
    stream: int | None = None
    url: str | None = None


class TrainSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The train split of a dataset: its path below the data directory and its address on the
    hub.
    """

    local: str
    hub: Hub


class Dataset(ABC):
    """A dataset names its sources and turns each row into a prompt.

    The kit's own datasets are TOML files in `datasets/definitions/`. Another distribution adds a
    subclass as an entry point of the group `specbench_kit.datasets`.
    """

    summary: ClassVar[str]
    """One line that says what the prompts are."""
    paper: ClassVar[str]
    """The papers that evaluate on it, with the section or table."""
    local: ClassVar[str | None] = None
    """Path below the data directory; None if no local layout is defined."""
    hub: ClassVar[Hub | None] = None
    """Address on the hub; None if only a local copy will do. Without `local` as well, the sample is
    the dataset.
    """
    train: ClassVar["TrainSplit | None"] = None
    """Prompts to train on, which no method is evaluated on."""
    chat: ClassVar[bool] = True
    """False if prompts are raw text that the model continues, without its chat template."""
    sample: ClassVar[str]
    """Name of the bundled sample that stands in for it, such as chat, or of the one that it
    consists of.
    """

    @abstractmethod
    def prompt(self, row: Row, index: int) -> Prompt | None:
        """Return the prompt of a row, or None for a row that the papers leave out."""


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """Prompts together with their origin, as the run records it."""

    name: str
    source: Source
    location: str
    """Relative path, hub id with split, or name of the sample; never an absolute path."""
    digest: str
    """SHA-256 over the chosen prompts, in order."""
    total: int
    """Prompts available before the limit."""
    prompts: tuple[Prompt, ...]
    reason: str | None = None
    """Reason for which a sample stands in."""
    part: str | None = None
    """Set if only prompts to train on were requested: `train`, or `reserved` if there is no train
    split.
    """
    left_out: tuple[str, ...] = ()
    """Fingerprints of the prompts that were not drawn from because a method was trained on them."""
    pool: tuple[Prompt, ...] = ()
    """All prompts that the chosen ones were drawn from."""

    def repeated(self, fewest: int) -> "LoadedDataset":
        """Return the dataset with its prompts as often as the `fewest` prompts take, always all of
        them.
        """
        passes = passes_for(len(self.prompts), fewest)
        if passes == 1:
            return self
        prompts = (
            replace(prompt, id=repeated_id(prompt.id, number), dialogue=prompt.id)
            for number in range(passes)
            for prompt in self.prompts
        )
        return replace(self, prompts=tuple(prompts))

    def describe(self) -> DatasetDescription:
        """Return what a run records of the dataset."""
        different = {prompt.dialogue or prompt.id: prompt for prompt in self.prompts}.values()
        return DatasetDescription(
            name=self.name,
            source=self.source,
            location=self.location,
            digest=self.digest,
            total=self.total,
            count=len(different),
            chat=sum(prompt.chat for prompt in different),
            part=self.part,
            left_out=list(self.left_out) or None,
        )


datasets: Registry[type[Dataset]] = Registry("dataset", "specbench_kit.datasets")
