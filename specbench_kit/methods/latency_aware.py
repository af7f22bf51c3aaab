"""The base of methods that weigh expected tokens against the time of drafting and verifying them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import LATENCIES, Environment, Group, Latencies, Method, Policy

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft


@dataclass(frozen=True)
class LatencyAware(Method):
    """A method whose policy needs the pair's latencies, which `prepare` takes from the environment."""

    latencies: Latencies | None = field(default=None, init=False, repr=False, kw_only=True)
    group: ClassVar[Group] = "latency-aware"
    needs = LATENCIES

    def prepare(self, environment: Environment) -> Method:
        ready = copy(self)
        object.__setattr__(ready, "latencies", environment.latencies())
        return ready

    def uses(self) -> Mapping[str, object]:
        if self.latencies is None:
            return {}
        return {"latencies": {name: asdict(model) for name, model in self.latencies._asdict().items()}}

    def policy(self) -> Policy:
        if self.latencies is None:
            raise SkitError(f"{self.display_name} needs the latencies of the pair: call prepare first")
        return self.policy_with(self.latencies)

    @abstractmethod
    def policy_with(self, latencies: Latencies) -> Policy:
        """Return a fresh policy for these latencies."""


def draft_s(latencies: Latencies, drafts: "Sequence[Draft]", steps: int) -> float:
    """Return the seconds of `steps` draft forwards, each of one token per request."""
    cached = [draft.context_length - 1 for draft in drafts]
    return sum(latencies.draft.seconds([(1, before + step) for before in cached]) for step in range(steps))


def verify_s(latencies: Latencies, drafts: "Sequence[Draft]", lengths: Sequence[int]) -> float:
    """Return the seconds of a verification with `lengths[i]` drafted tokens of request i."""
    rows = [(1 + length, draft.context_length - 1) for draft, length in zip(drafts, lengths, strict=True)]
    return latencies.verify.seconds(rows)


def round_s(latencies: Latencies, drafts: "Sequence[Draft]", steps: int) -> float:
    """Return the seconds of a round that drafts and verifies `steps` tokens of every request."""
    return draft_s(latencies, drafts, steps) + verify_s(latencies, drafts, [steps] * len(drafts))
