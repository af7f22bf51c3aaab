"""Chains whose draft distributions are made small before a token is drawn from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, lgamma, log
from typing import TYPE_CHECKING, ClassVar, NoReturn

from specbench_kit.core.errors import PolicyError
from specbench_kit.methods.base import Capability, Group, Method, Policy, methods

if TYPE_CHECKING:
    from torch import Tensor

    from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("sparse-quantised")
@dataclass(frozen=True)
class SparseQuantised(Method):
    """Draft `k` tokens, each drawn from the `top` most probable with probabilities rounded to
    multiples of 1/`levels`.

    A distribution is rounded before its token is drawn, and verified as rounded, so that the output
    stays the target's. A deployment charges the link ceil(log2 C(V, top) + log2 C(levels + top - 1,
    top - 1)) bits for every drafted token, besides its id. Greedy decoding sends ids alone, and
    drafts as `fixed-k` does.
    """

    k: int = 4
    top: int = 32
    levels: int = 100
    source = "Quantize-Sample-and-Verify, arXiv 2507.00605 (not verified: its code and defaults could not be had)"
    group: ClassVar[Group] = "static"
    is_folded = True
    required_capability = Capability.TREES
    own_distributions = True
    draft_limit = "k"

    def __post_init__(self) -> None:
        self.require_at_least(1, "k", "top", "levels")

    @property
    def submits_trees(self) -> bool:
        return False

    def policy(self) -> Policy:
        return SparsePolicy(self.k, self.top, self.levels)


@dataclass
class SparsePolicy(Policy):
    """Draft `k` tokens from rounded distributions; both numbers and the precision may change
    between rounds.
    """

    k: int
    top: int
    levels: int
    greedy: bool = False
    """True if the last round sent ids alone."""

    def draft(self, drafter: "Drafter") -> None:
        from specbench_kit.decoding.sampling import draw

        live = list(drafter.drafts)
        for _ in range(self.k):
            live = [draft for draft in live if drafter.room(draft) > 0]
            if not live:
                return
            forward = drafter.expand([(draft, [draft.tree.last]) for draft in live])
            self.greedy = forward.greedy
            best = forward.best_tokens() if forward.greedy else []
            for row, draft in enumerate(live):
                if forward.greedy:
                    draft.tree.add(best[row], draft.tree.last, forward, row)
                    continue
                rounded = self.rounded(forward.probabilities[row])
                (token,) = draw(rounded[None], [draft.session.random.uniform("draft")])
                draft.tree.add(token, draft.tree.last, _Rounded(rounded[None], forward), 0)
                self._add_payload(draft, len(rounded))

    def rounded(self, probabilities: "Tensor") -> "Tensor":
        """Return the distribution [vocabulary] from which the next token is drawn."""
        return quantised(probabilities, self.top, self.levels)

    def _add_payload(self, draft: "Draft", vocabulary: int) -> None:
        draft.tree.payload_bytes = (draft.tree.payload_bytes or 0.0) + payload_bits(
            vocabulary, self.top, self.levels
        ) / 8


@dataclass(frozen=True)
class _Rounded:
    """The rounded distribution [1, vocabulary] of one token; statistics are those of the draft
    model's own.
    """

    probabilities: "Tensor"
    forward: "DraftForward"
    sampled: ClassVar[bool] = True

    def probability(self, row: int, token: int) -> float:
        return float(self.probabilities[row, token])

    def stats(self, row: int, token: int) -> "NodeStats":
        self._refuse()

    def score(self, row: int, token: int, depth: int, scorer: "TokenScorer") -> float:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PolicyError("a rounded distribution has no statistics")


def quantised(probabilities: "Tensor", top: int, levels: int) -> "Tensor":
    """Return a distribution [vocabulary] of the `top` most probable tokens in multiples of
    1/`levels`.

    Each is rounded to the nearest; where the sum is not 1, those change by one step that were
    rounded the furthest the other way.
    """
    best = probabilities.topk(min(top, len(probabilities)))
    exact = (best.values.double() / best.values.double().sum() * levels).tolist()
    steps = nearest_steps(exact, levels)
    rounded = probabilities.new_zeros(len(probabilities))
    rounded[best.indices] = probabilities.new_tensor(steps) / levels
    return rounded


def nearest_steps(exact: Sequence[float], levels: int) -> list[int]:
    """Return whole numbers near to `exact` whose sum is `levels`, which is the sum of `exact`
    too.
    """
    steps = [int(value + 0.5) for value in exact]
    surplus = sum(steps) - levels
    order = sorted(
        range(len(exact)), key=lambda index: steps[index] - exact[index], reverse=surplus > 0
    )
    for index in order[: abs(surplus)]:
        steps[index] -= 1 if surplus > 0 else -1
    return steps


def payload_bits(vocabulary: int, top: int, levels: int) -> int:
    """Return the bits that name one of all such distributions: which tokens, and how the levels are
    shared out.
    """
    top = min(top, vocabulary)
    bits = _log2_choose(vocabulary, top) + _log2_choose(levels + top - 1, top - 1)
    return ceil(bits - 1e-6)


def _log2_choose(total: int, chosen: int) -> float:
    """Return the binary logarithm of the number of ways to choose."""
    return (lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)) / log(2)
