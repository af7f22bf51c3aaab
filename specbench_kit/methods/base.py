"""The method contract: a method's options are a frozen dataclass, its state is in the policy that
it makes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, get_args

from specbench_kit.core.errors import require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.registry import Registry
from specbench_kit.decoding.drafting.base import Capability, Drafting, parse_drafter
from specbench_kit.decoding.drawn import Verification
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.policy import Chains, Child, LevelPolicy, Policy, StopRule
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey
from specbench_kit.runs.document import MethodInputs

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
    "LinkCosts",
    "Method",
    "MethodInputs",
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
    "link",
    "bandit",
    "tree",
    "overlapping",
    "draft-free",
    "other",
]
"""The kind of decision that a method makes, in the order of lists and reports; `other` if it does
not say.
"""


GROUPS: tuple[Group, ...] = get_args(Group)


class Pipeline(NamedTuple):
    """A target that is cut into stages and takes one tree level of at most `width` tokens per
    request and step.

    The `budget` limits the tokens of a step over all requests, those of their prompts included.
    """

    stages: int
    width: int
    budget: StepBudget = StepBudget()

    @property
    def nodes(self) -> int:
        """Return the largest possible number of tree nodes: a level in every stage, and one that
        waits.
        """
        return self.width * (self.stages + 1)


LONGEST_DRAFT = 8
"""The tokens that a bound drafts at most where no method beside it drafts more."""
LATENCIES = "latencies of the pair: a deployment, or skit profile-drafter"
"""The requirement of methods that read `Environment.latencies`."""


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """What the link between drafter and verifier adds to a round, by the means of its
    distributions.

    `rtt_s` is the round trip with the expected time of lost messages, `jitter_s` the largest deviation of one message.
    Every drafted token takes `up_bytes`, every committed one `down_bytes`.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    up_bytes: float = 0.0
    down_bytes: float = 0.0
    up_bytes_per_s: float = inf
    down_bytes_per_s: float = inf

    def seconds(self, drafted: int, committed: float, requests: int = 1) -> float:
        """Return the expected seconds of both messages of a round, and of the queue at the server.

        A batch begins when its slowest message has arrived, and ends with the slowest answer.
        """
        slowest_s = self.jitter_s * (requests - 1) / (requests + 1)
        payloads_s = (
            drafted * self.up_bytes / self.up_bytes_per_s
            + committed * self.down_bytes / self.down_bytes_per_s
        )
        return self.rtt_s + 2 * slowest_s + payloads_s


class Latencies(NamedTuple):
    """The latency models of a pair's forwards in the environment where the method runs, and the
    link between them.

    `link` is None if drafts do not cross one. Where they do, every request has a drafting device of its own.
    """

    draft: LatencyModel
    verify: LatencyModel
    link: LinkCosts | None = None


class SendsAhead(NamedTuple):
    """Drafts that are sent before the verdicts on earlier ones: up to `in_flight` chunks of so many
    tokens.
    """

    chunk: int
    in_flight: int

    @property
    def longest(self) -> int:
        """The longest chain of tokens that no verdict has reached."""
        return self.chunk * self.in_flight


def unknown_latency() -> None:
    """Return None, for the latency of a target that nobody has measured."""


@dataclass(frozen=True)
class Environment:
    """The facts about the models and the deployment that a method may use to prepare itself."""

    pair: PairHashes
    latencies: Callable[[], Latencies]
    """Return those of the deployment, or of the pair's profile on this machine; raise SkitError if
    there is none.
    """
    modelled: bool = False
    """True if time is computed from a deployment rather than measured."""
    served: bool = False
    """True if the target is on a server, so that a measured run has a link to cross."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    deployment: DeploymentKey = LOCAL_DEPLOYMENT
    """The deployment whose time counts."""
    round_s: float | None = None
    """The longest that a round may take, in seconds, where clients were promised a token speed."""
    verification: Callable[[], LatencyModel | None] = field(default=unknown_latency)
    """Return the latency model of the target if it is known without measuring anything, else
    None.
    """
    link_s: float = 0.0
    """Seconds that draft and verdict spend on the link, without their bytes; 0 if drafts do not
    cross one.
    """
    batch_size: int = 1
    """The number of requests that are decoded together."""
    longest_draft: int = LONGEST_DRAFT
    """The most tokens that a method of the benchmark drafts: as far as a bound of them has to
    reach.
    """
    server_decodes: bool = False
    """True if a method may leave rounds to the server's own decoding, which crosses the link once
    for all of them.
    """

    def require_deployment(self, name: str) -> None:
        """Raise SkitError if the method `name` would run on this machine's clock."""
        require(
            self.modelled, f"{name}: only a deployment models what it does: add --deployment NAME"
        )

    def require_local_sampling(self, name: str) -> None:
        """Raise SkitError if the method `name` would need a rule of its own from a server."""
        served = self.served and self.temperature > 0
        require(
            not served,
            f"{name}: servers verify drawn tokens one by one: leave out --temperature or --server",
        )

    def require_local_target(self, name: str) -> None:
        """Raise SkitError if the method `name` would need more of a server than which tokens it
        accepts.
        """
        require(
            not self.served,
            f"{name}: servers do not send the target's candidates: leave out --server",
        )

    def require_link(self, name: str) -> None:
        """Raise SkitError if the method `name` would run with the target beside it, where there is
        no link.
        """
        missing = "there is no link to cross: add --deployment NAME or --server HOST:PORT"
        require(self.modelled or self.served, f"{name}: {missing}")


@dataclass(frozen=True)
class Method(ABC):
    """One way to decode; the fields of a subclass are its options on the command line.

    The docstring of a subclass is its description in `skit list methods` and in the docs; its first
    sentence is the summary.
    """

    drafter: str = field(default="model", kw_only=True)
    """The source of the draft tokens, such as `suffix` or `suffix.factor=2+min_prob=0.2`."""
    display_name: ClassVar[str] = ""
    """The name in error messages: the registered one, or the name of the class."""
    source: ClassVar[str] = ""
    """The paper or system that the method comes from."""
    reported_result: ClassVar[str] = ""
    """The result that the source reports for it, in its own setting."""
    group: ClassVar[Group] = "other"
    """The heading in lists and reports."""
    is_folded: ClassVar[bool] = False
    """True if reports fold its row where nobody named it, as by `--method all`: few readers look
    for it.
    """
    grid: ClassVar[Mapping[str, Sequence[object]]] = MappingProxyType({})
    """Values of its options that tuning tries."""
    needs: ClassVar[str] = ""
    """Requirements in words, besides those that the other attributes state."""
    proposal: ClassVar[Literal["sample", "top"]] = "sample"
    """Tokens that `drafter.extend` takes under sampling: drawn at random (`sample`) or the most
    likely ones (`top`).
    """
    verification: ClassVar[Verification] = "token"
    """How tokens drawn at random are verified; the policy marks its trees accordingly."""
    own_distributions: ClassVar[bool] = False
    """True if drafted tokens are drawn from distributions that the policy makes, not from the draft
    model's.
    """
    required_capability: ClassVar[Capability] = Capability.STATISTICS
    """What the policy reads from the drafter besides the tokens; a drafter with less is refused."""
    needs_reference: ClassVar[bool] = False
    """True if the policy reads the target's answer, which only a benchmark can provide."""
    is_rung: ClassVar[bool] = False
    """True if it stands among the bounds, to show how much of the oracle's gap a rule over draft
    signals closes.
    """
    uses_drafter: ClassVar[bool] = True
    """False if the verifier decodes the whole answer without drafts, and the link is crossed
    once.
    """
    placement: ClassVar[Literal["edge", "server"] | None] = None
    """Where the method drafts; None leaves it to the deployment."""
    learned: ClassVar[bool] = False
    """True if a predictor judges every drafted token, which takes time on the drafting device."""
    draft_limit: ClassVar[str] = "max_draft"
    """The option that limits the tokens of a draft, for methods that have one."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.display_name = vars(cls).get("display_name", cls.__name__)

    @classmethod
    def requirements(cls) -> list[str]:
        """Return what the method needs before it can run, in words."""
        has_choice = any(option.name == "drafter" and option.init for option in fields(cls))
        reads = cls.required_capability
        drafter = (
            [f"a drafter that gives {reads.words}"]
            if has_choice and reads > Capability.TOKENS
            else []
        )
        reference = ["the target's answer"] if cls.needs_reference else []
        return [*drafter, *reference, *([cls.needs] if cls.needs else [])]

    @property
    def is_bound(self) -> bool:
        """Return True if the method shows what others could reach, so that it is never the fastest
        itself.
        """
        return self.needs_reference or self.is_rung or self.drafting.is_bound

    @property
    def drafting(self) -> Drafting:
        """Return the drafter with its options."""
        if self.drafter == "none":
            from specbench_kit.decoding.drafting.look_up import NoDrafting

            return NoDrafting()
        return parse_drafter(self.drafter)

    def require_drafter(self) -> None:
        """Raise SkitError if the chosen drafter does not provide what the policy reads."""
        if self.drafter == type(self).drafter:
            return
        drafting = self.drafting
        required = self.required_capability
        require(
            drafting.capability >= required,
            f"{self.display_name} reads {required.words}, and drafter '{drafting.display_name}' has no more than "
            f"{drafting.capability.words}: choose another drafter or method",
        )

    def require_at_least(self, minimum: int, *options: str) -> None:
        """Raise SkitError if one of the options is smaller than the minimum."""
        for option in options:
            value = getattr(self, option)
            require(
                value >= minimum,
                f"{self.display_name}: {option} must be at least {minimum}, not {value}",
            )

    def require_share(self, *options: str) -> None:
        """Raise SkitError if one of the options does not lie in 0..1."""
        for option in options:
            value = getattr(self, option)
            require(0 <= value <= 1, f"{self.display_name}: {option} must lie in 0..1, not {value}")

    @property
    def submits_trees(self) -> bool:
        """Return True if it submits trees that may branch, which servers of other engines cannot
        verify.
        """
        return self.required_capability >= Capability.TREES

    @property
    def draws_tokens(self) -> bool:
        """Return True if sampled decoding draws its draft tokens at random, so that verification
        needs their odds.

        Other methods accept the drafted tokens that equal the target's own samples.
        """
        drafts = self.uses_drafter and self.pipeline is None
        return self.proposal == "sample" and drafts and self.drafting.drawn

    @property
    def reads_candidates(self) -> int:
        """Return how many of the target's most likely tokens after each verified token the policy
        learns from.
        """
        return 0

    @property
    def reads_divergences(self) -> bool:
        """Return True if the policy learns how far the draft model's distribution lay from the
        target's at each verified token.
        """
        return False

    @property
    def overlaps(self) -> bool:
        """Return True if the method drafts while the target verifies."""
        return False

    @property
    def batch_aware(self) -> bool:
        """Return True if one draft length is decided for the whole batch, not for each request by
        itself, from the drafts alone: a simulated server that asks the policy tells it no verdicts.
        """
        return False

    @property
    def trained_on(self) -> frozenset[str]:
        """Return the fingerprints of the prompts that a prepared method was trained on."""
        return frozenset()

    @property
    def trained_on_reserved(self) -> bool:
        """Return True if it was trained on the reserved split, which benchmarks always exclude."""
        return False

    @property
    def decision_s(self) -> float:
        """Return the seconds that a prepared method needs to judge a token in the decoding loop; 0
        if unknown.
        """
        return 0.0

    @property
    def longest_draft(self) -> int | None:
        """Return the largest number of tokens in a draft; None if no option limits it."""
        longest: int | None = getattr(self, self.draft_limit, None)
        return longest if self.uses_drafter else 0

    @property
    def longest_chain(self) -> int | None:
        """Return the largest number of drafted tokens behind a text, with those that no verdict was
        asked for yet.
        """
        return self.longest_draft

    @property
    def pipeline(self) -> Pipeline | None:
        """Return the pipeline that the method fills step by step; None if it decodes in rounds."""
        return None

    @property
    def ahead(self) -> SendsAhead | None:
        """Return how it sends drafts to a server ahead of the verdicts; None if it awaits each
        verdict.
        """
        return None

    def prepare(self, environment: Environment) -> "Method":
        """Return the method ready to run: one that depends on the models or on time reads them
        here.
        """
        return self

    def uses(self) -> MethodInputs:
        """Return what a prepared method read from its environment that decides what it does; runs
        record it.
        """
        return {}

    def chosen_options(self) -> OptionValues:
        """Return the values that a prepared method chose for options that were left to it."""
        return {}

    @classmethod
    def tuning_specs(
        cls, _tokens_per_s: Callable[[str, int], float], _batch_size: int, _longest: int
    ) -> Sequence[str]:
        """Return specs that tuning tries besides those of the `grid`, for batches of a size and
        drafts up to a length.

        The first argument returns the tokens per second of any method's spec at a batch size.
        """
        return ()

    @abstractmethod
    def policy(self) -> Policy | LevelPolicy:
        """Return a fresh policy without memory; a `LevelPolicy` if the method has a pipeline."""


class _Methods(Registry[type[Method]]):
    """The registry of methods, which sets each method's `display_name`."""

    def register(self, name: str) -> Callable[[type[Method]], type[Method]]:
        register = super().register(name)

        def add(method: type[Method]) -> type[Method]:
            method = register(method)
            method.display_name = name
            return method

        return add


methods: Registry[type[Method]] = _Methods("method", "specbench_kit.methods")
