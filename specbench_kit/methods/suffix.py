"""The method `suffix`: suffix decoding with its drafter's options."""

from dataclasses import dataclass, field
from types import MappingProxyType

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.methods.base import Method, Policy, methods
from specbench_kit.methods.fixed_k import FixedK


@methods.register("suffix")
@dataclass(frozen=True)
class Suffix(Method):
    """Draft up to `max_draft` tokens of the most frequent continuation of the newest tokens in
    earlier text.

    A match and its draft have at most `max_depth` tokens together, the draft at most `factor` x
    match length + `offset` tokens, and it ends where the estimated probability of the continuation
    falls below `min_prob`. The text is the request's own and the answers to other requests,
    finished or still running; `shared=false` leaves these out, so that results do not depend on the
    order of the requests.
    """

    max_draft: int = 16
    max_depth: int = 64
    factor: float = 1.0
    offset: int = 0
    min_prob: float = 0.1
    shared: bool = True
    drafter: str = field(default="suffix", init=False)
    source = "SuffixDecoding, Oliaro et al. 2024"
    reported_result = "up to 5.3 times autoregressive decoding (agents)"
    group = "draft-free"
    grid = MappingProxyType({"max_draft": (4, 8, 16), "factor": (1, 2), "min_prob": (0.1, 0.3)})

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        _ = self.drafting  # raises SkitError for bad options

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting import suffix

        return suffix.SuffixDrafting(
            self.max_depth, self.factor, self.offset, self.min_prob, self.shared, self.max_draft
        )

    def policy(self) -> Policy:
        return FixedK(self.max_draft).policy()
