"""The contract of a drafter: options in a frozen dataclass, and the source of draft tokens that it makes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry
from specbench_kit.core.specs import from_options

if TYPE_CHECKING:  # a list of drafters needs no torch
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.latency import LatencyModel
    from specbench_kit.decoding.pipeline.drafter import LevelSource
    from specbench_kit.decoding.sampling import Sampler
    from specbench_kit.models.runner import Runner

DRAFT = "draft"
"""The model that `--draft` names."""


class Capability(IntEnum):
    """What a drafter says of its tokens, and what a method asks; each has what those before it have."""

    TOKENS = 0
    PROBABILITIES = 1
    """Of every drafted token."""
    STATISTICS = 2
    """Of the distribution that every drafted token came from."""
    TREES = 3
    """Distributions below any node of a tree."""
    LEVELS = 4
    """The same of tree levels, one after the other, as a pipeline takes them."""

    @property
    def words(self) -> str:
        """For people."""
        return ("tokens", "probabilities", "statistics", "distributions of trees", "tree levels")[self]


@dataclass(frozen=True)
class DrafterParts:
    """What a drafter is made of. `models` are runners by name: `DRAFT`, and those that its `models` name."""

    models: "Mapping[str, Runner]"
    sampler: "Sampler"
    clock: "Clock"
    sampled: bool
    """Whether tokens are drawn at random where the drafter has distributions."""
    capacity: int


@dataclass(frozen=True)
class Drafting(ABC):
    """Where draft tokens come from; the fields of a subclass are its options, as in `drafter=NAME.key=value+key=value`.

    Found in this package or through entry points of the group `specbench_kit.drafting`.
    """

    display_name: ClassVar[str] = ""
    capability: ClassVar[Capability] = Capability.TREES
    on_record: ClassVar[bool] = False
    """Whether a trace holds its drafts: those of the draft model alone."""
    drawn: ClassVar[bool] = True
    """Whether sampled decoding draws its tokens at random, where the method does not want the likeliest."""

    @property
    def models(self) -> tuple[str, ...]:
        """Of the models that it forwards: `DRAFT`, and any number of folders or hub ids."""
        return (DRAFT,)

    @abstractmethod
    def source(self, parts: DrafterParts) -> "Drafter":
        """What the loop asks for drafts."""

    def levels(self, parts: DrafterParts) -> "LevelSource":
        """What a pipeline asks for levels, where it offers any."""
        raise SkitError(f"drafter '{self.display_name}' has no tree levels: choose another drafter")

    def layers(self, models: "Mapping[str, Runner]") -> Sequence[int]:
        """Return the target layers whose hidden states it reads; `models` are those of `DrafterParts`."""
        return ()

    def latency(self, draft: "LatencyModel") -> "LatencyModel":
        """Of one drafted token of every request, where a forward of the draft model takes as long as `draft` says."""
        return draft

    def latencies(self, draft: "LatencyModel") -> "Mapping[str, LatencyModel]":
        """Of a forward of each of its models, where the source is `Itemised`."""
        return {}


class _Drafters(Registry[type[Drafting]]):
    """Tells drafters what they are called."""

    def register(self, name: str) -> Callable[[type[Drafting]], type[Drafting]]:
        file = super().register(name)

        def add(drafter: type[Drafting]) -> type[Drafting]:
            drafter = file(drafter)
            drafter.display_name = name
            return drafter

        return add


drafters: Registry[type[Drafting]] = _Drafters(
    "drafter", "specbench_kit.decoding.drafting", group="specbench_kit.drafting"
)


def parse_drafter(spec: str) -> Drafting:
    """The drafter that `NAME.key=value+key=value` names; unknown names, keys and bad values are errors."""
    name, _, tail = spec.partition(".")
    return from_options(name, drafters.get(name), tail, separator="+")
