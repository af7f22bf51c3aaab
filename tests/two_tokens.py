"""A draft and a target of two tokens whose distributions are known: every outcome of a round can be enumerated."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product

import torch

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.rules import match, rule_for
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.models.executors.base import Forward

DEPTH = 3
"""Tokens that a draft can have."""
SAMPLER = Sampler(temperature=1.0)
Prefix = tuple[int, ...]
Chances = Callable[[str, Prefix], float]
"""Probability of token 0 after the tokens that a request's round has so far."""


def make_session(name: str) -> Session:
    request, record = Request(name, "test", (0,), 100), RequestRecord(name, "test", [])
    return Session(request, RequestRandom(0, name), frozenset(), 0.0, record)


@dataclass
class TwoTokenDrafter:
    """Drafts the tokens that it is told for each request, as if drawn from `chances`; untold ones are the likeliest."""

    chances: Chances
    names: Sequence[str]
    drawn: bool
    next_tokens: dict[str, Prefix] = field(default_factory=dict)
    clock: ModelledClock = field(default_factory=ModelledClock)
    drafts: list[Draft] = field(default_factory=list)
    forwards: dict[tuple[str, Prefix], DraftForward] = field(default_factory=dict)

    def begin(self, next_tokens: dict[str, Prefix]) -> "TwoTokenDrafter":
        """A fresh round."""
        sessions = map(make_session, self.names)
        drafts = [Draft(session, TokenTree(0)) for session in sessions]
        return replace(self, next_tokens=next_tokens, drafts=drafts)

    def awaits_answer(self, draft: Draft) -> bool:
        return True

    def room(self, draft: Draft) -> int:
        return DEPTH - draft.tree.last if self.drawn else 20 - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        grown = [draft for draft in drafts if draft.tree.depth(draft.tree.last) < DEPTH]
        for draft in grown:
            tree, name = draft.tree, draft.request_id
            forward = self._forward(name, tokens_to(tree, tree.last))
            best = int(forward.probabilities[0].argmax())
            tree.add(
                self.next_tokens[name][tree.last] if self.drawn else best, tree.last, forward, 0
            )
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        rows = [
            self._forward(draft.request_id, tokens_to(draft.tree, node)).logits
            for draft, nodes in frontier
            for node in nodes
        ]
        return DraftForward(Forward([torch.cat(rows)]), SAMPLER)

    def _forward(self, name: str, prefix: Prefix) -> DraftForward:
        if (name, prefix) not in self.forwards:
            chance = self.chances(name, prefix)
            logits = torch.tensor([[chance, 1 - chance]], dtype=torch.float64).log().float()
            self.forwards[name, prefix] = DraftForward(
                Forward([logits]), SAMPLER, sampled=self.drawn
            )
        return self.forwards[name, prefix]


def tokens_to(tree: TokenTree, node: int) -> Prefix:
    return tuple(tree.tokens[step] for step in tree.path(node))


Output = dict[Prefix, float]


def after(target: Chances, name: str, begun: Prefix, weight: float, into: Output) -> None:
    """Spread a weight over all outputs of DEPTH tokens that begin so, by the target's own distribution."""
    if len(begun) >= DEPTH:
        into[begun[:DEPTH]] = into.get(begun[:DEPTH], 0.0) + weight
        return
    chance = target(name, begun)
    for token, share in enumerate((chance, 1 - chance)):
        after(target, name, (*begun, token), weight * share, into)


def residual_outcome(
    draft: Chances, target: Chances, name: str, sent: Prefix, weight: float, into: Output
) -> None:
    """Add the outcomes of a chain of drawn tokens: each accepted with min(1, p/q), else one of what p has over q."""
    for position, token in enumerate(sent):
        prefix = sent[:position]
        q, p = (
            chances(name, prefix) if token == 0 else 1 - chances(name, prefix)
            for chances in (draft, target)
        )
        accepted = min(1.0, p / q)
        # of two tokens, what p has over q is all the other's
        after(target, name, (*prefix, 1 - token), weight * (1 - accepted), into)
        weight *= accepted
    after(target, name, sent, weight, into)


def likelihood(draft: Chances, name: str, tokens: Prefix) -> float:
    """Return the chance of drawing these tokens one after the other."""
    chance_of_all = 1.0
    for position, token in enumerate(tokens):
        chance = draft(name, tokens[:position])
        chance_of_all *= chance if token == 0 else 1 - chance
    return chance_of_all


def all_draws(names: Sequence[str]) -> Iterable[dict[str, Prefix]]:
    """Every tuple of drawn tokens of every request."""
    for tokens in product(*[tuple(product((0, 1), repeat=DEPTH))] * len(names)):
        yield dict(zip(names, tokens, strict=True))


def exact_outputs(
    policy: Policy,
    plan: Callable[[Policy, TwoTokenDrafter], list[list[int]]],
    drafter: TwoTokenDrafter,
    target: Chances,
) -> dict[str, Output] | None:
    """Each request's exact distribution over outputs of DEPTH tokens, from one round of a policy in its present state.

    None where no token is drawn at random: then the target's own draws are the output.
    """
    outputs: dict[str, Output] = {name: {} for name in drafter.names}
    for tokens_drawn in all_draws(drafter.names):
        view, fresh = drafter.begin(tokens_drawn), deepcopy(policy)
        chosen = plan(fresh, view)
        weight = 1.0
        for name, tokens in tokens_drawn.items():
            weight *= likelihood(drafter.chances, name, tokens)
        for draft, nodes in zip(view.drafts, chosen, strict=True):
            if not drafter.drawn:
                assert rule_for(draft.tree, nodes) is match
                return None
            sent = tokens_drawn[draft.request_id][: len(nodes)]
            residual_outcome(
                drafter.chances, target, draft.request_id, sent, weight, outputs[draft.request_id]
            )
    return outputs


def play(
    policy: Policy,
    plan: Callable[[Policy, TwoTokenDrafter], list[list[int]]],
    drafter: TwoTokenDrafter,
    rounds: int,
    random: torch.Generator,
) -> None:
    """Let a policy see some rounds, whose draws and verdicts are chances."""
    for _ in range(rounds):
        tokens_drawn = {
            name: tuple(torch.randint(2, (DEPTH,), generator=random).tolist())
            for name in drafter.names
        }
        view = drafter.begin(tokens_drawn)
        chosen = plan(policy, view)
        verdicts = [
            _verdict(draft, nodes, random) for draft, nodes in zip(view.drafts, chosen, strict=True)
        ]
        drafter.clock.wait_until(drafter.clock.now_s() + 0.01 + 0.002 * max(map(len, chosen)))
        policy.observe(verdicts)


def _verdict(draft: Draft, nodes: list[int], random: torch.Generator) -> Verdict:
    path: list[int] = []
    for node in nodes:
        if (
            draft.tree.parents[node] == (path[-1] if path else 0)
            and torch.rand(1, generator=random) < 0.7
        ):
            path.append(node)
    return Verdict(
        draft,
        nodes,
        path,
        bonus=int(torch.randint(2, (1,), generator=random)),
        computed=1 + len(nodes),
    )
