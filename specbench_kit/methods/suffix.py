"""Suffix decoding by name, for its commonest setting."""

from dataclasses import dataclass, field
from types import MappingProxyType

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.methods.base import Method, Policy, methods, require
from specbench_kit.methods.fixed_k import FixedK


@methods.register("suffix")
@dataclass(frozen=True)
class Suffix(Method):
    """Draft at most `max_draft` tokens of what most often followed the last ones; the options are the drafter's.

    `shared=false` keeps requests apart, so that results do not depend on their order.
    """

    max_draft: int = 16
    max_depth: int = 64
    factor: float = 1.0
    offset: int = 0
    min_prob: float = 0.1
    shared: bool = True
    drafter: str = field(default="suffix", init=False)
    source = "SuffixDecoding, Oliaro et al. 2024"
    reported_result = "up to 5.3 times plain decoding (agents)"
    group = "draft-free"
    grid = MappingProxyType({"max_draft": (4, 8, 16), "factor": (1, 2), "min_prob": (0.1, 0.3)})

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"suffix: max_draft must be at least 1, not {self.max_draft}")
        _ = self.drafting  # refuses bad options

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting import suffix

        return suffix.SuffixDrafting(self.max_depth, self.factor, self.offset, self.min_prob, self.shared)

    def policy(self) -> Policy:
        return FixedK(self.max_draft).policy()
