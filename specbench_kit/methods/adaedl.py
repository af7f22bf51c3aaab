"""Stop before the first token whose acceptance, bounded by the entropy it is drawn with, is not worth a draft step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("adaedl")
@dataclass(frozen=True)
class AdaEdl(Method):
    """Stop before a token for which 1 - sqrt(factor x entropy) is below a threshold that follows the acceptance rate.

    Kept for the run: the threshold, and the rate at which sent tokens are accepted (`beta1`), which starts at its
    `target`. After each round the threshold moves (`beta2`) up a `step` where the rate is below the target, and down
    otherwise, unless as many tokens as can be drafted were accepted. The token that it stops at was drawn and is not
    sent; the first one always is.
    """

    max_draft: int = 16
    factor: float = 0.2
    threshold: float = 0.5
    target: float = 0.9
    step: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    source = "AdaEDL, arXiv 2410.18351"
    reported_result = "10 to 57% over a static length"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.2, 0.35, 0.5), "target": (0.7, 0.8, 0.9), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"adaedl: max_draft must be at least 1, not {self.max_draft}")
        require(self.factor > 0, f"adaedl: factor must be above 0, not {self.factor}")
        require(self.step >= 0, f"adaedl: step must not be negative, but is {self.step}")
        for name in ("threshold", "target", "beta1", "beta2"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"adaedl: {name} must lie in 0..1, not {value}")

    def policy(self) -> Policy:
        return _AdaEdlPolicy(self)


@dataclass
class _AdaEdlPolicy(Policy):
    options: AdaEdl
    threshold: float = field(init=False)
    rate: float = field(init=False)
    probes: set[str] = field(default_factory=set)
    """Requests whose newest token was drawn where drafting should have ended."""

    def __post_init__(self) -> None:
        self.threshold, self.rate = self.options.threshold, self.options.target

    def draft(self, drafter: "Drafter") -> None:
        self.probes.clear()
        live = drafter.extend(drafter.drafts)
        for _ in range(self.options.max_draft - 1):
            live = [draft for draft in drafter.extend(live) if self._is_worth_it(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, len(draft.tree) - (draft.request_id in self.probes))) for draft in drafts]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(max(0.0, self._acceptance(draft, node)) for node in nodes)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            if verdict.submitted:
                self.learn(len(verdict.path), len(verdict.submitted))

    def learn(self, accepted: int, sent: int) -> None:
        """Move threshold and rate by one round."""
        options = self.options
        self.rate = options.beta1 * self.rate + (1 - options.beta1) * accepted / sent
        if self.rate < options.target:
            moved = self.threshold + options.step
        else:
            moved = self.threshold - (options.step if accepted < options.max_draft else 0.0)
        self.threshold = options.beta2 * self.threshold + (1 - options.beta2) * moved

    def _is_worth_it(self, draft: "Draft") -> bool:
        worth = self._acceptance(draft, draft.tree.last) >= self.threshold
        if not worth:
            self.probes.add(draft.request_id)
        return worth

    def _acceptance(self, draft: "Draft", node: int) -> float:
        """The lower bound on its chance."""
        return 1 - sqrt(self.options.factor * draft.tree.distribution_stats(node).entropy)
