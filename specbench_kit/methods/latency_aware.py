"""The base of methods that weigh expected tokens against the time of drafting and verifying them."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import ClassVar, Self

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import LATENCIES, Environment, Group, Latencies, Method, Policy
from specbench_kit.methods.server_decoding import ServerDecoding


@dataclass(frozen=True)
class LatencyAware(Method):
    """A method whose policy needs the pair's latencies, which `prepare` takes from the environment.

    Where a link lies between drafter and verifier, it is part of every round that the policy weighs; with `link=false`
    the policy believes that both are in one place, as they are in most papers.
    """

    link: bool = field(default=True, kw_only=True)
    latencies: Latencies | None = field(default=None, init=False, repr=False, kw_only=True)
    server_decodes: bool = field(default=False, init=False, repr=False, kw_only=True)
    """True if rounds in which drafting does not pay go to the server's own decoding."""
    group: ClassVar[Group] = "latency-aware"
    needs = LATENCIES

    @property
    def deepest_draft(self) -> int:
        """Return the largest number of drafted tokens that a round can commit."""
        return self.longest_draft or 1

    def prepare(self, environment: Environment) -> Method:
        return self.with_latencies(environment)

    def with_latencies(self, environment: Environment) -> Self:
        """Return a copy that knows the latencies of the environment, and the link if it is to see it."""
        ready, latencies = copy(self), environment.latencies()
        seen = latencies if self.link else latencies._replace(link=None)
        object.__setattr__(ready, "latencies", seen)
        object.__setattr__(ready, "server_decodes", environment.server_decodes and seen.link is not None)
        return ready

    def uses(self) -> Mapping[str, object]:
        if self.latencies is None:
            return {}
        draft, verify, link = self.latencies
        models: dict[str, object] = {"draft": asdict(draft), "verify": asdict(verify)}  # type: ignore[call-overload]
        if link is not None:
            # JSON has no infinity: a bandwidth that is not stated is unlimited.
            models["link"] = {name: value for name, value in asdict(link).items() if isfinite(value)}
        return {"latencies": models}

    def policy(self) -> Policy:
        if self.latencies is None:
            raise SkitError(f"{self.display_name} needs the latencies of the pair: call prepare first")
        return self.beside_server(self.policy_with(self.latencies), self.latencies)

    def beside_server(self, policy: Policy, latencies: Latencies) -> Policy:
        """Return the policy, which leaves rounds to the server's own decoding if it may."""
        return ServerDecoding(policy, latencies, self.deepest_draft) if self.server_decodes else policy

    @abstractmethod
    def policy_with(self, latencies: Latencies) -> Policy:
        """Return a fresh policy for these latencies."""
