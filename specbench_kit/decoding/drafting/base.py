"""The contract of a drafter: its options in a frozen dataclass, and the source of draft tokens that
it makes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.registry import Registry
from specbench_kit.core.specs import from_options, init_fields

if TYPE_CHECKING:  # a list of drafters needs no torch
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.drafter import Drafter, DraftSource
    from specbench_kit.decoding.latency import LatencyModel
    from specbench_kit.decoding.pipeline.drafter import LevelSource
    from specbench_kit.decoding.sampling import Sampler
    from specbench_kit.models.runner import Runner

DRAFT = "draft"
"""The model that `--draft` names."""


class Capability(IntEnum):
    """A level of what a drafter tells about its tokens, or a method needs; each level includes
    those before it.
    """

    TOKENS = 0
    PROBABILITIES = 1
    """The probability of every drafted token."""
    STATISTICS = 2
    """Statistics of the distribution that every drafted token came from."""
    TREES = 3
    """Distributions below any node of a tree."""
    LEVELS = 4
    """Distributions below whole tree levels, one after the other, which a pipeline needs."""

    @property
    def words(self) -> str:
        """The level in words, for messages."""
        return ("tokens", "probabilities", "statistics", "distributions of trees", "tree levels")[
            self
        ]


@dataclass(frozen=True)
class DrafterParts:
    """The parts that a drafter is made of.

    `models` are runners by name: `DRAFT`, and those that the drafter's `models` names.
    """

    models: "Mapping[str, Runner]"
    sampler: "Sampler"
    clock: "Clock"
    sampled: bool
    """True if tokens are drawn at random from distributions; else the likeliest are taken."""
    capacity: int
    remembered: int | None = None
    """The most tokens of finished outputs that a look-up drafter keeps; None keeps all."""


@dataclass(frozen=True)
class Drafting(ABC):
    """A kind of drafter; a subclass's fields are its options, as in
    `drafter=NAME.key=value+key=value`.

    Subclasses are found in this package or through entry points of the group
    `specbench_kit.drafting`.
    """

    display_name: ClassVar[str] = ""
    capability: ClassVar[Capability] = Capability.TREES
    recordable: ClassVar[bool] = False
    """True if its drafts and their time follow from the text, so that a trace may hold them."""
    reads_states: ClassVar[bool] = False
    """True if it reads hidden states of the target."""
    drawn: ClassVar[bool] = True
    """True if sampled decoding draws its tokens at random, unless the method takes the
    likeliest.
    """

    modelled: ClassVar[bool] = False
    """True if only a deployment models the time that it takes."""

    @property
    def members(self) -> "Sequence[Drafting]":
        """Return the drafters from which every round takes one; empty if there is no choice."""
        return ()

    @property
    def depends_on_order(self) -> bool:
        """Return True if its drafts depend on which requests were finished before."""
        return False

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it forwards: `DRAFT`, and any number of folders or hub ids."""
        return (DRAFT,)

    @property
    def needs_grammar(self) -> bool:
        """Return True if it can draft only for requests whose output follows a grammar."""
        return any(member.needs_grammar for member in self.members)

    @property
    def spec(self) -> str:
        """Return the text that `parse_drafter` reads as this drafter."""
        options = {option.name: getattr(self, option.name) for option in init_fields(type(self))}
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in options.items()
        }
        texts |= {
            name: "-".join(map(str, value))
            for name, value in options.items()
            if isinstance(value, tuple)
        }
        changed = [
            f"{name}={texts[name]}"
            for name in options
            if options[name] != getattr(type(self), name)
        ]
        return ".".join(filter(None, (self.display_name, "+".join(changed))))

    @property
    def is_bound(self) -> bool:
        """Return True if no drafter of its kind can be right so often: what it reaches is an upper
        bound.
        """
        return False

    @property
    def tokens_per_forward(self) -> int:
        """Return how many tokens of a chain one forward drafts."""
        return 1

    def require_new_prompts(self, passes: int) -> None:
        """Raise SkitError if prompts are decoded `passes` times and it would find their answers
        again.
        """
        require(
            passes == 1 or not self.depends_on_order,
            f"drafter '{self.spec}' searches earlier answers, and would find those to the same prompts: a batch that "
            "stays full repeats them; add shared=false, or take more prompts",
        )

    def resolved(self, exists: Callable[[str], bool]) -> "Drafting":
        """Return the drafter after the choices that depend on the models at hand.

        `exists` says whether there is a model of a name, as `models` has them.
        """
        return self

    @abstractmethod
    def source(self, parts: DrafterParts) -> "Drafter":
        """Return the drafter that an engine works with."""

    def over(self, recorded: "DraftSource", clock: "Clock") -> "DraftSource | None":
        """Return the drafter over the draft model's chains of a trace; None if its drafts do not
        follow from them.
        """
        return None

    def levels(self, parts: DrafterParts) -> "LevelSource":
        """Return the drafter that a pipeline works with; SkitError if it cannot draft levels."""
        raise SkitError(f"drafter '{self.display_name}' has no tree levels: choose another drafter")

    def layers(self, models: "Mapping[str, Runner]") -> Sequence[int]:
        """Return the target's layers whose hidden states it reads; `models` are those of
        `DrafterParts`.
        """
        return ()

    def latency(self, draft: "LatencyModel") -> "LatencyModel":
        """Return the latency of drafting a token for every request, given that of a draft-model
        forward.
        """
        return draft

    @property
    def reports_forwards(self) -> bool:
        """Return True if its drafter reports its forwards, as `latencies` has their models."""
        return type(self).latencies is not Drafting.latencies

    def latencies(self, draft: "LatencyModel") -> "Mapping[str, LatencyModel]":
        """Return the latency of a forward of each of its models, if its drafter reports
        forwards.
        """
        return {}


class _DrafterRegistry(Registry[type[Drafting]]):
    """Tells each drafter the name under which it is registered."""

    def register(self, name: str) -> Callable[[type[Drafting]], type[Drafting]]:
        register = super().register(name)

        def add(drafter: type[Drafting]) -> type[Drafting]:
            drafter = register(drafter)
            drafter.display_name = name
            return drafter

        return add


drafters: Registry[type[Drafting]] = _DrafterRegistry(
    "drafter", "specbench_kit.decoding.drafting", group="specbench_kit.drafting"
)


def parse_drafter(spec: str, separator: str = "+") -> Drafting:
    """Return the drafter that `NAME.key=value+key=value` describes; `separator` stands between its
    options.

    Unknown names, unknown keys and bad values raise SkitError.
    """
    name, _, options = spec.partition(".")
    return from_options(name, drafters.get(name), options, separator)
