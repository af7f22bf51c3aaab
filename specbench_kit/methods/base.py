"""The method contract: hyper-parameters in a frozen dataclass, state in the policy that it makes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from specbench_kit.core.errors import require
from specbench_kit.core.registry import Registry
from specbench_kit.decoding.drafting.base import Capability, Drafting, parse_drafter
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.policy import Chains, Child, LevelPolicy, Policy, StopRule
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey

__all__ = [
    "GROUPS",
    "LATENCIES",
    "Capability",
    "Chains",
    "Child",
    "Environment",
    "Group",
    "Latencies",
    "LevelPolicy",
    "Method",
    "Pipeline",
    "Policy",
    "StepBudget",
    "StopRule",
    "methods",
    "require",
]


Group = Literal[
    "bounds",
    "static",
    "stop-rule",
    "learned",
    "latency-aware",
    "bandit",
    "tree",
    "overlapping",
    "draft-free",
    "other",
]
"""What a policy decides by, in the order in which reports show them; `other` is for methods that do not say."""


GROUPS: tuple[Group, ...] = get_args(Group)


class Pipeline(NamedTuple):
    """A target cut into stages, which is fed one level of a tree per step and request, of at most `width` tokens.

    The `budget` says what the levels of a batch, and its prompts, come to together.
    """

    stages: int
    width: int
    budget: StepBudget = StepBudget()

    @property
    def nodes(self) -> int:
        """The most that a tree can come to: a level in every stage, and one that waits."""
        return self.width * (self.stages + 1)


LATENCIES = "latencies of the pair: a deployment, or skit profile-drafter"
"""What those methods need that ask the environment for `latencies`."""


class Latencies(NamedTuple):
    """How long the forwards of a pair take where the method runs."""

    draft: LatencyModel
    verify: LatencyModel


@dataclass(frozen=True)
class Environment:
    """What a method may ask of the place where it will run, before it runs."""

    pair: PairHashes
    latencies: Callable[[], Latencies]
    """Of the deployment, or as profiled for the pair on this machine; without a profile an error that says how."""
    modelled: bool = False
    """Whether time is a deployment's."""
    temperature: float = 0.0
    """At which tokens are drawn; 0 is greedy."""
    place: DeploymentKey = LOCAL_DEPLOYMENT
    """Whose time counts."""
    round_s: float | None = None
    """How long a round may take, where somebody was promised a speed."""

    def require_deployment(self, name: str) -> None:
        """Refuse to run a method on this machine's clock, where nothing lies between the models."""
        require(self.modelled, f"{name}: only a deployment has a link to cross: add --deployment NAME")


@dataclass(frozen=True)
class Method(ABC):
    """One way to decode; the fields of a subclass are its options on the command line."""

    drafter: str = field(default="model", kw_only=True)
    """Where its draft tokens come from, as in `suffix` or `suffix.factor=2+min_prob=0.2`."""
    display_name: ClassVar[str] = ""
    """The name that errors give it: the registered one, or the class's."""
    source: ClassVar[str] = ""
    """Paper or system it comes from."""
    reported_result: ClassVar[str] = ""
    """What that reports for it, in its own setting."""
    group: ClassVar[Group] = "other"
    """Under which it is listed and reported."""
    grid: ClassVar[Mapping[str, Sequence[Any]]] = MappingProxyType({})
    """Values of its options that are worth trying where it is tuned."""
    needs: ClassVar[str] = ""
    """What has to be there before it can run, besides what the other attributes say."""
    proposal: ClassVar[Literal["sample", "top"]] = "sample"
    """Under sampling: whether `drafter.extend` draws tokens at random or takes the most likely ones."""
    required_capability: ClassVar[Capability] = Capability.STATISTICS
    """What its policy reads of the drafter besides the tokens; one that has less is refused."""
    needs_reference: ClassVar[bool] = False
    """Whether the policy reads the target's answer, which only a benchmark can give it."""
    uses_drafter: ClassVar[bool] = True
    """Whether it drafts; one that does not leaves the whole answer to the verifier, the link crossed once."""
    placement: ClassVar[Literal["edge", "server"] | None] = None
    """Where it drafts whatever the deployment says."""
    learned: ClassVar[bool] = False
    """Whether a learned predictor judges every drafted token, which takes time on the drafting device."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.display_name = vars(cls).get("display_name", cls.__name__)

    @classmethod
    def requirements(cls) -> list[str]:
        """What it needs, in words."""
        chooses = any(one.name == "drafter" and one.init for one in fields(cls))
        drafted = (
            [f"a drafter that gives {cls.required_capability.words}"]
            if chooses and cls.required_capability > Capability.TOKENS
            else []
        )
        reference = ["the target's answer"] if cls.needs_reference else []
        return [*drafted, *reference, *([cls.needs] if cls.needs else [])]

    @property
    def drafting(self) -> Drafting:
        """The drafter, with its options."""
        if self.drafter == "none":
            from specbench_kit.decoding.drafting.look_up import NoDrafting

            return NoDrafting()
        return parse_drafter(self.drafter)

    def require_drafter(self) -> None:
        """Refuse a drafter that does not say what the policy reads; the one by default does."""
        if self.drafter == type(self).drafter:
            return
        found = self.drafting
        require(
            found.capability >= self.required_capability,
            f"{self.display_name} reads {self.required_capability.words}, and drafter '{found.display_name}' has no more than "
            f"{found.capability.words}: choose another drafter or method",
        )

    @property
    def overlaps(self) -> bool:
        """Whether it drafts while the target verifies."""
        return False

    @property
    def batch_aware(self) -> bool:
        """Whether it drafts as far as the whole batch goes, and not each request by itself."""
        return False

    @property
    def trained_on(self) -> frozenset[str]:
        """Of a method made ready: fingerprints of the prompts that it learned from."""
        return frozenset()

    @property
    def trained_on_reserved(self) -> bool:
        """Whether these are a part set apart for it, which a benchmark leaves out unasked."""
        return False

    @property
    def decision_s(self) -> float:
        """Of a learned method made ready: what judging a token took in the decoding loop, 0 where it is not known."""
        return 0.0

    @property
    def longest_draft(self) -> int | None:
        """Tokens that a draft has at most, where an option says so."""
        longest: int | None = getattr(self, "max_draft", None)
        return longest if self.uses_drafter else 0

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
    def policy(self) -> Policy | LevelPolicy:
        """A fresh policy with no memory: of levels where the method fills a pipeline."""


class _Methods(Registry[type[Method]]):
    """Tells methods what they are called."""

    def register(self, name: str) -> Callable[[type[Method]], type[Method]]:
        file = super().register(name)

        def add(method: type[Method]) -> type[Method]:
            method = file(method)
            method.display_name = name
            return method

        return add


methods: Registry[type[Method]] = _Methods("method", "specbench_kit.methods")
