"""Plain decoding: one target forward per token."""

from dataclasses import dataclass

from specbench_kit.methods.base import Method, Policy, methods


@methods.register("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Method):
    """No draft: every round verifies an empty tree. The baseline for losslessness and speedup."""

    source = "baseline"
    uses_drafter = False

    def policy(self) -> Policy:
        return Policy()
