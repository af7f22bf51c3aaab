"""Plain decoding: one target forward per token."""

from dataclasses import dataclass, field

from specbench_kit.drafting.base import Drafting
from specbench_kit.methods.base import Method, Offer, Policy, methods


@methods.register("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Method):
    """No draft: every round verifies an empty tree. The baseline for losslessness and speedup."""

    drafter: str = field(default="none", init=False)
    source = "baseline"
    asks = Offer.TOKENS
    uses_drafter = False

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.drafting.look_up import Nothing

        return Nothing()

    def policy(self) -> Policy:
        return Policy()
