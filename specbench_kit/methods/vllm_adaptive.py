"""Verify the tokens of the batch that are worth their time, by an acceptance model that is fitted
during the run.

Also here: the probability that a drafted token is accepted, from one feature: a logistic regression
fitted step by step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from math import log, tanh
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from specbench_kit.decoding.latency import sums_of
from specbench_kit.methods.base import Latencies, Policy, methods, require
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import draft_s, link_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

LARGEST = 40.0
"""Log-odds are clipped to this value and its negative."""


@methods.register("vllm-adaptive")
@dataclass(frozen=True)
class VllmAdaptive(LatencyAware):
    """Draft `max_draft` tokens, then verify those of the batch that raise its expected tokens per
    second.

    The acceptance probability at each position is a logistic function of one `feature`: the log-odds of the most
    probable token (`max`), the lead of its logit over the second (`margin`), or the log-odds of the drafted token
    (`drawn`). The number of verified tokens follows from the scores of the round before (`budget=stale`) or of this one
    (`fresh`); `drawn` and `fresh` draft the most probable tokens instead of drawing them. The model is refitted every
    `refit_every` rounds, with `damping` and the ridge `l2`; until `warmup_refits` fits, every token is verified. Tokens
    that were not verified, or follow a rejection, do not count. The model is kept for the run, scores per request. A
    draft of this kit's models costs a forward per token; vLLM's drafter there is one forward for the whole block.
    """

    max_draft: int = 7
    feature: Literal["max", "margin", "drawn"] = "max"
    budget: Literal["stale", "fresh"] = "stale"
    refit_every: int = 100
    warmup_refits: int = 3
    damping: float = 50.0
    l2: float = 1e-3
    source = "vLLM pull requests 47808 and 52228"
    grid = MappingProxyType(
        {
            "max_draft": (3, 5, 7),
            "refit_every": (25, 100),
            "warmup_refits": (1, 3),
            "feature": ("max", "margin"),
        }
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft", "refit_every")
        require(self.warmup_refits >= 0, "vllm-adaptive: warmup_refits must not be negative")
        require(
            self.damping >= 0 and self.l2 > 0,
            "vllm-adaptive: damping must not be negative, and l2 above 0",
        )
        if self.feature == "drawn" or self.budget == "fresh":
            # A token drawn at random must not influence whether it is verified: that would bias the
            # output.
            object.__setattr__(self, "proposal", "top")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _VllmAdaptivePolicy(self, latencies)


class _VllmAdaptivePolicy(Policy):
    def __init__(self, options: VllmAdaptive, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.fit = AcceptanceFit(options.max_draft, options.damping, options.l2)
        self.rounds = 0
        self.scores: dict[str, list[float]] = {}
        """By request, the probability in its last round that everything up to each position is
        accepted.
        """

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(self.options.max_draft):
            drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        if self.fit.refits < self.options.warmup_refits:
            return super().choose(drafts)
        fresh = self.options.budget == "fresh"
        slots = self.count(
            drafts, [self._fresh(draft) if fresh else self._stale(draft) for draft in drafts]
        )
        lengths = [0] * len(drafts)
        for request, _ in islice(best_first([self._fresh(draft) for draft in drafts]), slots):
            lengths[request] += 1
        return [list(range(1, length + 1)) for length in lengths]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float | None:
        decides = self.fit.refits >= self.options.warmup_refits
        return sum(self.scores[draft.request_id][: len(nodes)]) if decides else None

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            draft = verdict.draft
            accepted = len(verdict.path)
            for position, node in enumerate(verdict.submitted[: accepted + 1]):
                self.fit.add(position, self._feature(draft, node), position < accepted)
            self.scores[draft.request_id] = list(self._fresh(draft))
        self.rounds += 1
        if self.rounds % self.options.refit_every == 0:
            self.fit.refit()

    def forget(self, request_id: str) -> None:
        self.scores.pop(request_id, None)

    def count(self, drafts: "Sequence[Draft]", scores: Sequence[Iterator[float]]) -> int:
        """Return the number of verified tokens with the most expected tokens per second, the most
        probable first.
        """
        drafting_s = draft_s(self.latencies, drafts, self.options.max_draft)
        rows = [(1, draft.context_length - 1) for draft in drafts]
        sums = sums_of(rows)
        expected = float(len(drafts))
        longest = 0
        fixed_s = drafting_s + link_s(self.latencies, len(drafts), 0)
        best = 0
        best_rate = expected / (fixed_s + self.latencies.verify.of_sums(sums))
        for slots, (request, score) in enumerate(best_first(scores), 1):
            sums, (new, cached) = sums.longer(rows[request]), rows[request]
            rows[request], expected = (new + 1, cached), expected + score
            longest = max(longest, new)
            fixed_s = drafting_s + link_s(self.latencies, len(drafts), longest)
            rate = expected / (fixed_s + self.latencies.verify.of_sums(sums))
            if rate > best_rate:
                best = slots
                best_rate = rate
        return best

    def _stale(self, draft: "Draft") -> Iterator[float]:
        """Return the scores of the round before; 1 for a new request, which has none yet."""
        certain = [1.0] * self.options.max_draft
        return iter(self.scores.get(draft.request_id, certain)[: draft.tree.last])

    def _fresh(self, draft: "Draft") -> Iterator[float]:
        """Yield the scores of this round; a token is scored only once the one before it is to be
        verified.
        """
        score = 1.0
        for node in range(1, len(draft.tree)):
            score *= self.fit.chance(node - 1, self._feature(draft, node))
            yield score

    def _feature(self, draft: "Draft", node: int) -> float:
        tree = draft.tree
        if self.options.feature == "drawn":
            return log_odds(tree.probability(node))
        outlook = tree.distribution_stats(node)
        if self.options.feature == "max":
            return log_odds(outlook.confidence)
        second = outlook.confidence - outlook.margin
        return min(log(outlook.confidence / second), LARGEST) if second > 0 else LARGEST


def best_first(scores: Sequence[Iterator[float]]) -> Iterator[tuple[int, float]]:
    """Yield requests, with the score of their next token, by falling score; scores never rise
    within a request.
    """
    heap: list[tuple[float, int]] = []
    for request, request_scores in enumerate(scores):
        _push(heap, request, request_scores)
    while heap:
        score, request = heappop(heap)
        yield request, -score
        _push(heap, request, scores[request])


def _push(heap: list[tuple[float, int]], request: int, scores: Iterator[float]) -> None:
    score = next(scores, None)
    if score is not None:
        heappush(heap, (-score, request))


def log_odds(probability: float) -> float:
    """Return the log-odds of a probability, clipped to a range in which exp() is finite."""
    if not 0 < probability < 1:
        return LARGEST if probability else -LARGEST
    return max(-LARGEST, min(LARGEST, log(probability / (1 - probability))))


@dataclass
class _Sums:
    """First and second derivatives of the log-likelihood over the tokens of one position."""

    count: int = 0
    slope: float = 0.0
    intercept: float = 0.0
    slope_slope: float = 0.0
    slope_intercept: float = 0.0
    intercept_intercept: float = 0.0


@dataclass
class AcceptanceFit:
    """The model sigmoid(slope x feature + intercept of the position), fitted by damped Newton steps
    with a ridge `l2`.

    A step over n tokens is scaled by n / (n + `damping`). A step that would make the slope negative
    leaves it as it is (vLLM).
    """

    positions: int
    damping: float
    l2: float
    slope: float = 0.0
    intercepts: list[float] = field(default_factory=list)
    refits: int = 0

    def __post_init__(self) -> None:
        self.intercepts = self.intercepts or [1.5] * self.positions
        self._clear()

    def chance(self, position: int, feature: float) -> float:
        """Return the acceptance probability of a token at a position, from 0, if the tokens before
        it are accepted.
        """
        # The tanh form of the sigmoid overflows nowhere.
        return (1 + tanh((self.slope * feature + self.intercepts[position]) / 2)) / 2

    def add(self, position: int, feature: float, accepted: bool) -> None:
        """Add the outcome of a verified token whose predecessors were all accepted."""
        chance = self.chance(position, feature)
        sums = self.sums[position]
        residual = accepted - chance
        weight = chance * (1 - chance)
        sums.count += 1
        sums.slope += residual * feature
        sums.intercept += residual
        sums.slope_slope += weight * feature * feature
        sums.slope_intercept += weight * feature
        sums.intercept_intercept += weight

    def refit(self) -> None:
        """Take one Newton step on the tokens that were added since the last refit, then discard
        them.
        """
        # The intercepts are eliminated from the Newton system first: each depends on the slope
        # alone.
        curvature = self.l2 + sum(
            s.slope_slope - s.slope_intercept**2 / self._ridged(s) for s in self.sums
        )
        gradient = sum(
            s.slope - s.slope_intercept * s.intercept / self._ridged(s) for s in self.sums
        )
        slope_step = self._damped(sum(s.count for s in self.sums)) * gradient / curvature
        slope_step = slope_step if self.slope + slope_step >= 0 else 0.0
        self.slope += slope_step
        for position, sums in enumerate(self.sums):
            step = (sums.intercept - sums.slope_intercept * slope_step) / self._ridged(sums)
            self.intercepts[position] += self._damped(sums.count) * step
        self.refits += 1
        self._clear()

    def _ridged(self, sums: _Sums) -> float:
        return sums.intercept_intercept + self.l2

    def _damped(self, count: int) -> float:
        return count / (count + self.damping) if count else 0.0

    def _clear(self) -> None:
        self.sums = [_Sums() for _ in range(self.positions)]
