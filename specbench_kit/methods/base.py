"""The method contract: hyper-parameters in a frozen dataclass, state in the policy that it makes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from specbench_kit.errors import SkitError
from specbench_kit.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.latency import LatencyModel
    from specbench_kit.decoding.verification import Verdict
    from specbench_kit.predictors.library import PairHashes


class Child(NamedTuple):
    """A node of a pipeline's next level: the place of its parent in the last level, and its log-probability so far."""

    parent: int
    token: int
    score: float


class Pipeline(NamedTuple):
    """A target cut into stages, which is fed one level of a tree, of at most `width` tokens, per step."""

    stages: int
    width: int

    @property
    def nodes(self) -> int:
        """The most that a tree can come to: a level in every stage, and one that waits."""
        return self.width * (self.stages + 1)


class Policy:
    """Decides what to draft and what to verify; one object serves all requests of a run.

    Views are for reading: the loop owns forwards, KV, randomness, clock and records.
    """

    def draft(self, drafter: "Drafter") -> None:
        """Grow the trees of `drafter.drafts` by calling `drafter.extend` or `drafter.expand`."""

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        """For each draft the tree nodes worth verifying, parents before children; by default all of them."""
        return [list(range(1, len(draft.tree))) for draft in drafts]

    def overlap(self, drafter: "Drafter") -> None:
        """Go on drafting while the target verifies what was chosen; the verdicts are not known yet."""

    def keep(self, verdict: "Verdict") -> int | None:
        """The node, drafted in `overlap`, that turned out to be the verdict's extra token: the next round's root."""
        return None

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        """Learn from the outcome of one round."""

    def next_level(self, probabilities: "Tensor", scores: Sequence[float], room: int) -> list[Child]:
        """For a pipeline: at most `room` nodes below those of the last level.

        Row i of `probabilities` [nodes, vocabulary] is what the draft model expects after the last level's node i;
        `scores[i]` is the log-probability of that node.
        """
        return []


class Latencies(NamedTuple):
    """How long the forwards of a pair take where the method runs."""

    draft: "LatencyModel"
    verify: "LatencyModel"


@dataclass(frozen=True)
class Environment:
    """What a method may ask of the place where it will run, before it runs."""

    pair: "PairHashes"
    latencies: Callable[[], Latencies]
    """Of the deployment, or as profiled for the pair on this machine; without a profile an error that says how."""
    modelled: bool = False
    """Whether time is a deployment's."""

    def require_deployment(self, name: str) -> None:
        """Refuse to run a method on this machine's clock, where nothing lies between the models."""
        require(self.modelled, f"{name}: only a deployment has a link to cross: add --deployment NAME")


@dataclass(frozen=True)
class Method(ABC):
    """One way to decode; the fields of a subclass are its options on the command line."""

    source: ClassVar[str] = ""
    """Paper or system it comes from."""
    proposal: ClassVar[Literal["sample", "top"]] = "sample"
    """Under sampling: tokens drawn from the draft model (residual verification) or its most likely ones (match)."""
    needs_reference: ClassVar[bool] = False
    """Whether the policy reads the target's answer, which only a benchmark can give it."""
    uses_drafter: ClassVar[bool] = True
    """Whether it drafts; one that does not leaves the whole answer to the verifier, the link crossed once."""
    placement: ClassVar[Literal["edge", "server"] | None] = None
    """Where it drafts whatever the deployment says."""
    overlaps: ClassVar[bool] = False
    """Whether it drafts while the target verifies."""
    learned: ClassVar[bool] = False
    """Whether a learned predictor judges every drafted token, which takes time on the drafting device."""

    @property
    def trained_on(self) -> frozenset[str]:
        """Of a method made ready: fingerprints of the prompts that it learned from."""
        return frozenset()

    @property
    def trained_apart(self) -> bool:
        """Whether these are a part set apart for it, which a benchmark leaves out unasked."""
        return False

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline that it fills, step by step; None where it goes round by round."""
        return None

    def prepare(self, environment: Environment) -> "Method":
        """The method made ready to run; one that depends on the models or on time finds here what it needs."""
        return self

    def uses(self) -> Mapping[str, Any]:
        """Of a method made ready: what it found there, besides its options, that decides what it does."""
        return {}

    @abstractmethod
    def policy(self) -> Policy:
        """A fresh policy with no memory."""


def require(condition: bool, message: str) -> None:
    """Refuse a bad option value with one line."""
    if not condition:
        raise SkitError(message)


methods: Registry[type[Method]] = Registry("method", "specbench_kit.methods")
