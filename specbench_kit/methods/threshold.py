"""Stop drafting where the draft model is uncertain."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Method, Policy, StopRule, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

Schedule = Literal["constant", "heuristic", "heuristic-transient"]


@methods.register("threshold")
@dataclass(frozen=True)
class Threshold(Method):
    """Stop after the first token whose draft probability is below the threshold; that token is
    sent.

    A draft has at most `max_draft` tokens. With `schedule=heuristic` this limit rises by 2 after a round that accepted
    all drafts of the batch as a whole and falls by 1 after any other, over the whole run; with `heuristic-transient`,
    every request has a limit of its own. (The source decodes one request at a time.) `adaptive` refits each request's
    threshold to the least false positive rate + 3 x false negative rate of its own tokens.
    `unit=batch` stops all requests together by their mean probability (AdaSpec's baseline: threshold=0.6, max_draft=8),
    `unit=any` once no request's newest token reaches the threshold, as vLLM's confidence stop does (not verified).
    """

    threshold: float = 0.4
    max_draft: int = 20
    schedule: Schedule = "constant"
    adaptive: bool = False
    unit: Literal["request", "batch", "any"] = "request"
    required_capability = Capability.PROBABILITIES
    source = "Hugging Face assisted generation"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        self.require_share("threshold")
        self.require_at_least(1, "max_draft")
        require(
            not self.adaptive or self.unit == "request",
            "threshold: adaptive=true needs unit=request",
        )

    @property
    def batch_aware(self) -> bool:
        return self.unit != "request"

    def policy(self) -> Policy:
        return _ThresholdPolicy(self)


@dataclass
class _History:
    """The draft probabilities of verified tokens and whether the target accepted them."""

    probabilities: list[float] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)


class _ThresholdPolicy(Policy):
    def __init__(self, options: Threshold) -> None:
        self.options = options
        self.limits: defaultdict[str, int] = defaultdict(lambda: options.max_draft)
        self.thresholds: defaultdict[str, float] = defaultdict(lambda: options.threshold)
        self.histories: defaultdict[str, _History] = defaultdict(_History)

    @property
    def stop_rule(self) -> StopRule | None:
        options = self.options
        if options.schedule != "constant" or options.adaptive or options.unit != "request":
            return None
        return StopRule(
            options.max_draft,
            lambda chains: chains.probability < options.threshold,
            chances=lambda chains: chains.probability,
        )

    def draft(self, drafter: "Drafter") -> None:
        live = list(drafter.drafts)
        while live:
            growing = [d for d in live if len(d.tree) - 1 < self.limits[self._scope(d.request_id)]]
            live = self._confident(drafter.extend(growing))

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(map(draft.tree.probability, nodes))

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.options.schedule == "heuristic":
            self._reschedule("", verdicts)
        elif self.options.schedule == "heuristic-transient":
            for verdict in verdicts:
                self._reschedule(verdict.draft.request_id, [verdict])
        if self.options.adaptive:
            for verdict in verdicts:
                self._refit(verdict)

    def forget(self, request_id: str) -> None:
        for memory in (self.limits, self.thresholds, self.histories):
            memory.pop(request_id, None)

    def _scope(self, request_id: str) -> str:
        return request_id if self.options.schedule == "heuristic-transient" else ""

    def _confident(self, drafts: "Sequence[Draft]") -> "list[Draft]":
        """Return the drafts that continue after their newest token."""
        probabilities = [draft.tree.probability(draft.tree.last) for draft in drafts]
        if self.options.unit == "batch" and probabilities:
            mean = sum(probabilities) / len(probabilities)
            return list(drafts) if mean >= self.options.threshold else []
        if self.options.unit == "any":
            return list(drafts) if max(probabilities, default=0.0) >= self.options.threshold else []
        pairs = zip(drafts, probabilities, strict=True)
        return [
            draft
            for draft, probability in pairs
            if probability >= self.thresholds[draft.request_id]
        ]

    def _reschedule(self, scope: str, verdicts: "Sequence[Verdict]") -> None:
        """Move a limit once, by the verdicts of one round."""
        all_accepted = all(len(verdict.path) == len(verdict.submitted) for verdict in verdicts)
        self.limits[scope] = (
            self.limits[scope] + 2 if all_accepted else max(1, self.limits[scope] - 1)
        )

    def _refit(self, verdict: "Verdict") -> None:
        request_id = verdict.draft.request_id
        accepted = len(verdict.path)
        history = self.histories[request_id]
        for position, node in enumerate(verdict.submitted[: accepted + 1]):
            history.probabilities.append(verdict.draft.tree.probability(node))
            history.accepted.append(position < accepted)
        if len(history.accepted) > 5 and len(set(history.accepted)) == 2:
            self.thresholds[request_id] = best_threshold(history.probabilities, history.accepted)


def best_threshold(probabilities: Sequence[float], accepted: Sequence[bool]) -> float:
    """Return the probability that is the best threshold: the one with the least FPR + 3 FNR.

    A token at or above the threshold is predicted accepted.
    """
    import numpy as np

    order = np.argsort(probabilities)[::-1]
    values = np.asarray(probabilities)[order]
    labels = np.asarray(accepted)[order]
    last_of_value = np.append(values[1:] != values[:-1], True)
    recall = np.cumsum(labels)[last_of_value] / labels.sum()
    false_positive_rate = np.cumsum(~labels)[last_of_value] / (~labels).sum()
    costs = false_positive_rate + 3 * (1 - recall)
    return float(values[last_of_value][costs.argmin()])
