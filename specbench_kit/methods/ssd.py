"""Draft the next chain for several likely outcomes while the target verifies the present one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from specbench_kit.methods.base import Capability, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import Distributions, DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

ROUNDS_TO_LEARN = 50
"""Number of first rounds whose acceptance rate decides how guesses are allocated."""


@methods.register("ssd")
@dataclass(frozen=True)
class Ssd(Method):
    """Draft the next chain of `k` tokens for several outcomes of a verification while it runs.

    An outcome is a number of accepted tokens and the bonus token after them. `guesses` is the
    average number of bonus tokens that are tried per number of accepted tokens: the most probable
    ones of the draft model other than the drafted token. `allocation=uniform` gives each number as
    many; `geometric` gives likelier numbers more, with tail exponent `r`, by the acceptance rate of
    the run's first 50 rounds. If no guess was right, `backup=jit` drafts after the verdict and
    `none` decodes one token without a draft, where the authors' `fast` sends random tokens. The run
    keeps the counts of accepted and rejected tokens of those rounds, a request what was drafted
    ahead for it.

    Chains are of the most probable tokens, also under sampling. The authors' code draws them there,
    which is accepted more often, and can make the guessed tokens less likely in the target's answer
    (`sampler_x`, absent here).
    """

    k: int = 6
    guesses: int = 3
    allocation: Literal["uniform", "geometric"] = "uniform"
    r: float = 1.0
    backup: Literal["jit", "none"] = "jit"
    source = "speculative speculative decoding, arXiv 2603.03251"
    reported_result = "up to 5 times autoregressive decoding"
    group = "overlapping"
    proposal = "top"
    required_capability = Capability.TREES
    overlaps = True

    def __post_init__(self) -> None:
        self.require_at_least(1, "k", "guesses")
        require(self.r > 0, f"ssd: r must be above 0, not {self.r}")

    @property
    def submits_trees(self) -> bool:
        return (
            False  # it drafts below several outcomes, and submits the chain below the one that came
        )

    def policy(self) -> Policy:
        return _SsdPolicy(self)


def geometric_shares(acceptance: float, length: int, budget: int, exponent: float) -> list[int]:
    """Return the number of guesses for 0 to `length` accepted tokens, at least one each, out of
    `budget`.

    Shares are proportional to probability ^ (1 / (1 + exponent)) and rounded by largest remainder.
    This minimises the probability of a miss if n guesses for an outcome all miss with probability n
    ^ -exponent.
    """
    chances = [acceptance**accepted * (1 - acceptance) for accepted in range(length)] + [
        acceptance**length
    ]
    weights = [chance ** (1 / (1 + exponent)) for chance in chances]
    ideal = [budget * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in ideal]
    by_remainder = sorted(range(len(ideal)), key=lambda index: shares[index] - ideal[index])
    for index in by_remainder[: max(0, budget - sum(shares))]:
        shares[index] += 1
    return shares


@dataclass
class _DraftedAhead:
    """The nodes that are drafted below the outcomes of one request's verification."""

    draft: "Draft"
    tips: list[int] = field(default_factory=list)
    """The newest node below each outcome."""
    outcomes: dict[tuple[int, int], int] = field(default_factory=dict)
    """The guessed node, by the last accepted node and the bonus token after it."""


class _SsdPolicy(Policy):
    def __init__(self, options: Ssd) -> None:
        self.options = options
        self.chains: dict[str, list[int]] = {}
        self.ahead: dict[str, _DraftedAhead] = {}
        self.missed: set[str] = set()
        """Requests that begin a new draft because no guess was right."""
        self.accepted = 0
        self.rejected = 0
        self.rounds = 0

    def draft(self, drafter: "Drafter") -> None:
        self.chains = {
            draft.request_id: list(range(1, len(draft.tree))) for draft in drafter.drafts
        }
        without_draft = self.missed if self.options.backup == "none" else set()
        live = [draft for draft in drafter.drafts if draft.request_id not in without_draft]
        for _ in range(self.options.k):
            live = [draft for draft in live if len(self.chains[draft.request_id]) < self.options.k]
            live = self._extend_chains(drafter, live)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(self.chains[draft.request_id]) for draft in drafts]

    def overlap(self, drafter: "Drafter") -> None:
        waiting = [
            _DraftedAhead(draft)
            for draft in drafter.drafts
            if drafter.awaits_answer(draft) and drafter.room(draft) > 0
        ]
        self.ahead = {ahead.draft.request_id: ahead for ahead in waiting}
        if waiting:
            forward = drafter.expand(
                [(ahead.draft, [self._leaf(ahead.draft)]) for ahead in waiting]
            )
            for row, ahead in enumerate(waiting):
                self._guess(drafter, ahead, forward, row)
        for _ in range(self.options.k):
            self._extend_guesses(
                drafter,
                [ahead for ahead in waiting if ahead.tips and drafter.awaits_answer(ahead.draft)],
            )

    def next_root(self, verdict: "Verdict") -> int | None:
        request_id = verdict.draft.request_id
        ahead = self.ahead.pop(request_id, None)
        end = verdict.path[-1] if verdict.path else 0
        node = ahead.outcomes.get((end, verdict.bonus)) if ahead else None
        (self.missed.add if node is None else self.missed.discard)(request_id)
        return node

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.rounds < ROUNDS_TO_LEARN:
            self.accepted += sum(len(verdict.path) for verdict in verdicts)
            self.rejected += sum(len(verdict.path) < len(verdict.submitted) for verdict in verdicts)
        self.rounds += 1

    def forget(self, request_id: str) -> None:
        self.ahead.pop(request_id, None)
        self.missed.discard(request_id)

    def _extend_chains(self, drafter: "Drafter", drafts: "list[Draft]") -> "list[Draft]":
        live = [draft for draft in drafts if drafter.room(draft) > 0]
        if live:
            forward = drafter.expand([(draft, [self._leaf(draft)]) for draft in live])
            for row, (draft, token) in enumerate(zip(live, forward.best_tokens(), strict=True)):
                chain = self.chains[draft.request_id]
                chain.append(draft.tree.add(token, self._leaf(draft), forward, row))
        return live

    def _leaf(self, draft: "Draft") -> int:
        chain = self.chains[draft.request_id]
        return chain[-1] if chain else 0

    def _guess(
        self, drafter: "Drafter", ahead: _DraftedAhead, forward: "DraftForward", row: int
    ) -> None:
        """Append the most probable bonus tokens after each number of accepted tokens."""
        tree = ahead.draft.tree
        chain = self.chains[ahead.draft.request_id]
        sources = [*(tree.source(node) for node in chain), (forward, row)]
        drafted = [*(tree.tokens[node] for node in chain), -1]
        for parent, source, token, count in zip(
            [0, *chain], sources, drafted, self._guess_counts(len(chain)), strict=True
        ):
            for guess in _likeliest_except(source, token, min(count, drafter.room(ahead.draft))):
                node = ahead.outcomes[parent, guess] = tree.add(guess, parent, *source)
                ahead.tips.append(node)

    def _guess_counts(self, length: int) -> list[int]:
        """Return the number of guesses for each number of accepted tokens, from 0 to `length`."""
        tested = self.accepted + self.rejected
        if self.options.allocation == "uniform" or self.rounds < ROUNDS_TO_LEARN or not tested:
            return [self.options.guesses] * (length + 1)
        budget = self.options.guesses * (length + 1)
        return geometric_shares(self.accepted / tested, length, budget, self.options.r)

    def _extend_guesses(self, drafter: "Drafter", waiting: list[_DraftedAhead]) -> None:
        """Draft one more token below every outcome, as far as there is room."""
        for ahead in waiting:
            del ahead.tips[max(0, drafter.room(ahead.draft)) :]
        waiting = [ahead for ahead in waiting if ahead.tips]
        if not waiting:
            return
        forward = drafter.expand([(ahead.draft, ahead.tips) for ahead in waiting])
        best = forward.best_tokens()
        row = 0
        for ahead in waiting:
            for index, tip in enumerate(ahead.tips):
                ahead.tips[index] = ahead.draft.tree.add(best[row], tip, forward, row)
                row += 1


def _likeliest_except(source: "tuple[Distributions, int]", drafted: int, count: int) -> list[int]:
    """Return the `count` most probable tokens of a distribution other than the one that was drafted
    from it.
    """
    forward = cast("DraftForward", source[0])
    row = source[1]
    likeliest = forward.top_tokens(count + 1)[row]
    return [token for token in likeliest if token != drafted][:count]
