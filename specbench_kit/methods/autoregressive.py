"""Autoregressive decoding: one target forward per token."""

from dataclasses import dataclass, field

from specbench_kit.methods.base import Capability, Method, Policy, StopRule, methods


@methods.register("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Method):
    """Decode without a draft, one target forward per token: the baseline for losslessness and
    speedup.
    """

    drafter: str = field(default="none", init=False)
    source = "baseline"
    group = "bounds"
    required_capability = Capability.TOKENS
    uses_drafter = False

    def policy(self) -> Policy:
        return _EmptyPolicy()


class _EmptyPolicy(Policy):
    stop_rule = StopRule(0)
