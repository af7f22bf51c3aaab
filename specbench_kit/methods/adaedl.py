"""Stop before a token whose acceptance probability, bounded by the draft's entropy, is too low for
a draft step.
"""

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
    """Stop before a token for which 1 - sqrt(factor x entropy) is below a threshold that follows
    the acceptance rate.

    Entropy is in nats. The run keeps two moving averages: the acceptance rate of sent tokens,
    weighted by `beta1`, which starts at `target`; and the threshold, weighted by `beta2`, which
    starts at `threshold`. After each round the threshold moves by a `step`: up if the rate is below
    the target, otherwise down unless all `max_draft` tokens were accepted. The token at which it
    stops was drawn and is not sent; the first token always is. A batch moves both once a round, by
    all of its tokens (the source decodes one request at a time).
    """

    max_draft: int = 16
    factor: float = 0.2
    threshold: float = 0.5
    target: float = 0.9
    step: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    source = "AdaEDL, arXiv 2410.18351 (not verified: its code is not public, and its text could not be had)"
    reported_result = "10 to 57% over a static length"
    group = "stop-rule"
    grid = MappingProxyType(
        {"threshold": (0.2, 0.35, 0.5), "target": (0.7, 0.8, 0.9), "max_draft": (3, 5, 8)}
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        require(self.factor > 0, f"adaedl: factor must be above 0, not {self.factor}")
        require(self.step >= 0, f"adaedl: step must not be negative, but is {self.step}")
        self.require_share("threshold", "target", "beta1", "beta2")

    def policy(self) -> Policy:
        return _AdaEdlPolicy(self)


@dataclass
class _AdaEdlPolicy(Policy):
    options: AdaEdl
    threshold: float = field(init=False)
    rate: float = field(init=False)
    kept_back: set[str] = field(default_factory=set)
    """Requests whose newest token was drawn where drafting should have ended, and is not sent."""

    def __post_init__(self) -> None:
        self.threshold, self.rate = self.options.threshold, self.options.target

    def draft(self, drafter: "Drafter") -> None:
        self.kept_back.clear()
        live = drafter.extend(drafter.drafts)
        for _ in range(self.options.max_draft - 1):
            live = [draft for draft in drafter.extend(live) if self._is_worth_it(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [
            list(range(1, len(draft.tree) - (draft.request_id in self.kept_back)))
            for draft in drafts
        ]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(max(0.0, self._acceptance(draft, node)) for node in nodes)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        tested = [verdict for verdict in verdicts if verdict.submitted]
        if tested:
            accepted = sum(len(verdict.path) for verdict in tested)
            self.learn(accepted, sum(len(verdict.submitted) for verdict in tested), len(tested))

    def learn(self, accepted: int, sent: int, requests: int = 1) -> None:
        """Update the threshold and the acceptance rate by one round in which so many requests had
        drafts.
        """
        options = self.options
        self.rate = options.beta1 * self.rate + (1 - options.beta1) * accepted / sent
        if self.rate < options.target:
            goal = self.threshold + options.step
        else:
            goal = self.threshold - (
                options.step if accepted < options.max_draft * requests else 0.0
            )
        self.threshold = options.beta2 * self.threshold + (1 - options.beta2) * goal

    def _is_worth_it(self, draft: "Draft") -> bool:
        is_worth_it = self._acceptance(draft, draft.tree.last) >= self.threshold
        if not is_worth_it:
            self.kept_back.add(draft.request_id)
        return is_worth_it

    def _acceptance(self, draft: "Draft", node: int) -> float:
        """Return the lower bound on the acceptance probability of a node."""
        return 1 - sqrt(self.options.factor * draft.tree.distribution_stats(node).entropy)
