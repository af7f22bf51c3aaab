"""Draft while the batch's expected throughput grows, then verify only the tokens that pay for
themselves.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.latency import sums_of
from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import (
    Capability,
    Environment,
    Latencies,
    Method,
    Policy,
    methods,
    require,
)
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import forward_s, link_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.latency import Row


@methods.register("adaspec")
@dataclass(frozen=True)
class AdaSpec(LatencyAware):
    """Draft all requests while the batch's expected tokens per second grow, then drop the tokens
    that slow it down.

    Tokens are expected by their draft probabilities, and their time by latency models of both models. The average
    probability of earlier tokens stands for the next one's; it is `initial_confidence` before the first token. Drafting
    stops before a round would last longer than `slo_tpot` seconds or, by default, than the deployment's promised token
    speed allows. The tokens that are dropped are the least likely ones of the batch, as many as make it fastest;
    `elimination=false` sends every drafted token (the paper's AdaSpec-). The paper keeps to the SLO; in the released
    code that check is commented out.
    """

    max_draft: int = 8
    slo_tpot: float | None = None
    initial_confidence: float = 0.6
    elimination: bool = True
    source = "AdaSpec, arXiv 2503.05096 (code: github.com/cerebellumking/AdaSpec)"
    reported_result = "1.23 to 1.79 times autoregressive decoding, 7 to 18% over fixed lengths"
    grid = MappingProxyType(
        {
            "max_draft": (3, 5, 8),
            "initial_confidence": (0.4, 0.6, 0.8),
            "elimination": ("true", "false"),
        }
    )
    required_capability = Capability.PROBABILITIES
    proposal = (
        "top"  # elimination picks by the token itself, which would bias tokens drawn at random
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        positive = self.slo_tpot is None or self.slo_tpot > 0
        require(
            positive, f"adaspec: slo_tpot must be a number of seconds above 0, not {self.slo_tpot}"
        )
        self.require_share("initial_confidence")

    @property
    def batch_aware(self) -> bool:
        return True

    def prepare(self, environment: Environment) -> Method:
        slo_tpot = environment.round_s if self.slo_tpot is None else self.slo_tpot
        return replace(self, slo_tpot=slo_tpot).with_latencies(environment)

    def policy_with(self, latencies: Latencies) -> Policy:
        return _AdaSpecPolicy(self, latencies)


@dataclass(slots=True)
class _Chain:
    """The draft of one request with the numbers that the policy derives from it."""

    draft: "Draft"
    cached: int
    """Tokens in the KV cache: all before the root, which the next forward of either model
    computes.
    """
    scores: list[float]
    """Probability that the target accepts everything down to each node, root first."""
    confidence: float = 1.0
    """Draft probability of the newest token."""

    @property
    def tokens(self) -> Iterator[tuple[int, float]]:
        """Return the depth and the score of each drafted token."""
        return enumerate(self.scores[1:], start=1)


class _AdaSpecPolicy(Policy):
    def __init__(self, options: AdaSpec, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.slo_s = inf if options.slo_tpot is None else options.slo_tpot
        self.confidence = options.initial_confidence
        self.tokens = 0
        self.chains: list[_Chain] = []
        self.expected = 0.0
        self.draft_s = 0.0

    def draft(self, drafter: "Drafter") -> None:
        live = self.chains = [
            _Chain(draft, draft.context_length - 1, [1.0]) for draft in drafter.drafts
        ]
        self.expected = float(len(live))
        self.draft_s = 0.0
        reached = self._throughput(self.expected, self.draft_s, self._rows())
        for drafted in range(self.options.max_draft):
            predicted = self._predict(live, drafted)
            if predicted < reached or (drafted == 0 and predicted == reached):
                return
            live = self._extend(drafter, live)
            before = reached
            reached = self._throughput(self.expected, self.draft_s, self._rows())
            if not live or reached < before:
                return
            self._learn(live)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        lengths = [len(chain.scores) - 1 for chain in self.chains]
        if self.options.elimination and any(lengths):
            lengths = self._eliminate()
        return [list(range(1, length + 1)) for length in lengths]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(map(draft.tree.probability, nodes))

    def _throughput(self, expected: float, draft_s: float, rows: "Sequence[Row]") -> float:
        """Return the expected tokens per second of a round."""
        drafted = max(new for new, _ in rows) - 1
        return self._rate(expected, draft_s + self.latencies.verify.seconds(rows), drafted)

    def _rate(self, expected: float, computing_s: float, drafted: int) -> float:
        """Return the expected tokens per second, or -1 if the round has drafts and lasts longer
        than the SLO.
        """
        seconds = computing_s + link_s(self.latencies, len(self.chains), drafted)
        return -1.0 if drafted and seconds > self.slo_s else expected / seconds

    def _rows(self) -> "list[Row]":
        """Return the rows of a verification of everything that is drafted so far."""
        return [(len(chain.scores), chain.cached) for chain in self.chains]

    def _draft_seconds(self, live: list[_Chain]) -> float:
        return forward_s(
            self.latencies, [(1, chain.cached + len(chain.scores) - 1) for chain in live]
        )

    def _predict(self, live: list[_Chain], drafted: int) -> float:
        """Return the throughput with one more token per live chain, each as likely as the earlier
        ones on average.
        """
        expected = self.expected + self.confidence * sum(chain.scores[-1] for chain in live)
        rows = [(new + (new > drafted), cached) for new, cached in self._rows()]
        return self._throughput(expected, self.draft_s + self._draft_seconds(live), rows)

    def _extend(self, drafter: "Drafter", live: list[_Chain]) -> list[_Chain]:
        """Draft one more token per chain and return the chains that had room for it."""
        drafter.extend([chain.draft for chain in live])
        grown = [chain for chain in live if len(chain.draft.tree) > len(chain.scores)]
        if grown:
            self.draft_s += self._draft_seconds(grown)
        for chain in grown:
            chain.confidence = chain.draft.tree.probability(chain.draft.tree.last)
            chain.scores.append(chain.scores[-1] * chain.confidence)
            self.expected += chain.scores[-1]
        return grown

    def _learn(self, live: list[_Chain]) -> None:
        """Add the newest tokens to the average confidence."""
        self.tokens += len(live)
        self.confidence += sum(chain.confidence - self.confidence for chain in live) / self.tokens

    def _eliminate(self) -> list[int]:
        """Return how many tokens of each draft make the batch fastest, where the most probable
        tokens are kept.

        All numbers of kept tokens are compared: where the time of a verification grows in steps, as
        with kernels or captured graphs of fixed sizes, the first token to go may gain nothing and
        the next ones much. The authors' code cuts to the next such size at once, and compares that
        alone.
        """
        # A token is never likelier than those before it, so these come first; among equals, the
        # deeper goes first.
        order = sorted(
            (-score, depth, row)
            for row, chain in enumerate(self.chains)
            for depth, score in chain.tokens
        )
        verify = self.latencies.verify
        lengths = [0] * len(self.chains)
        sums = sums_of([(1, chain.cached) for chain in self.chains])
        expected = float(len(lengths))
        best = self._rate(expected, self.draft_s + verify.of_sums(sums), 0)
        kept = 0
        for count, (loss, _, row) in enumerate(order, start=1):
            sums = sums.longer((1 + lengths[row], self.chains[row].cached))
            expected = expected - loss
            lengths[row] += 1
            rate = self._rate(expected, self.draft_s + verify.of_sums(sums), sums.longest - 1)
            if rate >= best:  # a token that costs nothing stays
                best = rate
                kept = count
        counts = Counter(row for _, _, row in order[:kept])
        return [counts[row] for row in range(len(lengths))]
