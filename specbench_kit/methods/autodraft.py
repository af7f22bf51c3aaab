"""AutoDraft's trees, whose width, depth and sent nodes minimise a blend of time and money per
token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.decoding.records import UNLIMITED
from specbench_kit.methods.base import Capability, Latencies, Policy, methods
from specbench_kit.methods.growth import GrowingTree, expand
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import RoundTime, answer_s, forward_s, verify_s

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

LEAST_LEVELS = 3
"""Levels that are grown before one has to lower the objective."""


@methods.register("autodraft")
@dataclass(frozen=True)
class AutoDraft(LatencyAware):
    """Grow a tree whose width, depth and number of sent nodes take the least time and money per
    expected token.

    The objective is `cost_weight` times the money per token plus the rest times the time per token,
    each relative to a reference. Every level has a multiple of `step` nodes, up to `nodes`, and the
    first one as many as it may; as many are sent. Levels are added, up to `max_depth`, while the
    third and each later one lowers the objective. Expected accepted tokens are the sum of the
    nodes' cumulative probabilities, times the ratio of accepted to expected tokens so far, less the
    share `margin`. Money is `edge_price_per_hour` of the time of drafting and
    `server_price_per_hour` of the time of verifying. The references are the run's own time and
    money per token up to the last finished request. Each request of a batch is judged as if it was
    alone, and no round is left to the server.

    This is the rule of the authors' code with `proactive=False`, its default. Left out are drafting
    ahead, which depends on when threads are woken up, meters of electrical power and prices of
    bytes. Two things are ours: before a request has finished, the references are those of the
    server alone, where the code decodes questions to calibrate them; and every draft forward
    counts, where the code leaves out the root's and, for a width, the newest one.
    """

    nodes: int = 150
    max_depth: int = 15
    step: int = 10
    cost_weight: float = 0.5
    margin: float = 0.05
    edge_price_per_hour: float = 0.152
    server_price_per_hour: float = 1.208
    source = "AutoDraft, 2026: the package autodraft-sd 1.1.1 (its paper could not be had)"
    reported_result = "79% less cost of the server and 44% more throughput than the server alone"
    group = "tree"
    grid = MappingProxyType(
        {"nodes": (30, 60, 150), "step": (5, 10), "cost_weight": (0.0, 0.5, 1.0)}
    )
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        self.require_at_least(1, "nodes", "step")
        self.require_at_least(2, "max_depth")
        self.require_at_least(0, "edge_price_per_hour", "server_price_per_hour")
        self.require_share("cost_weight", "margin")

    @property
    def deepest_draft(self) -> int:
        return self.max_depth

    def policy_with(self, latencies: Latencies) -> Policy:
        return _AutoDraftPolicy(self, latencies)

    def beside_server(self, policy: Policy, latencies: Latencies) -> Policy:
        return policy


class _Cost(NamedTuple):
    """What a round takes."""

    seconds: float
    money: float


class _PerToken:
    """The time and the money per token of the rounds so far; before the first one, those that it
    begins with.
    """

    def __init__(self, seconds: float, money: float) -> None:
        self.reference = _Cost(seconds, money)
        self._seconds = 0.0
        self._money = 0.0
        self._tokens = 0

    def add(self, cost: _Cost, tokens: int) -> None:
        """Add a round that committed so many tokens."""
        self._seconds += cost.seconds
        self._money += cost.money
        self._tokens += tokens

    def renew(self) -> None:
        """Let the rounds so far be the reference."""
        if self._tokens:
            self.reference = _Cost(self._seconds / self._tokens, self._money / self._tokens)


@dataclass
class _Plan:
    """The tree of one request while it grows."""

    tree: GrowingTree
    drafting_s: float = 0.0
    levels: int = 0
    sent: int = 0
    """The number of most probable nodes that are sent, as last chosen."""
    objective: float = inf
    expected: float = 0.0
    """Expected accepted tokens of the nodes that are sent."""
    frontier: list[int] = field(default_factory=list)

    @property
    def nodes(self) -> list[int]:
        """The nodes below the root."""
        return [node for node in self.tree.scores if node != self.tree.root]


class _AutoDraftPolicy(Policy):
    def __init__(self, options: AutoDraft, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.accepted = 0
        self.expected = 0.0
        """Accepted tokens, and expected ones, of the rounds that had some accepted."""
        self.per_token: _PerToken | None = None
        self.plans: dict[str, _Plan] = {}
        self.time: RoundTime | None = None

    def draft(self, drafter: "Drafter") -> None:
        self.time = RoundTime(drafter)
        if self.per_token is None:
            plain_s = verify_s(self.latencies, drafter.drafts[:1], [0])
            self.per_token = _PerToken(plain_s, plain_s * self.options.server_price_per_hour)
        live = [_Plan(GrowingTree(draft, UNLIMITED, decay=1.0)) for draft in drafter.drafts]
        self.plans = {plan.tree.draft.request_id: plan for plan in live}
        for plan in live:
            plan.frontier = [plan.tree.root]
        for level in range(1, self.options.max_depth + 1):
            live = [plan for plan in live if plan.frontier and drafter.room(plan.tree.draft) > 0]
            if not live:
                return
            forward, first_rows = expand(drafter, [(plan.tree, plan.frontier) for plan in live])
            growing = []
            for plan, first_row in zip(live, first_rows, strict=False):
                before = plan.objective
                self._add_level(plan, forward, first_row, drafter.room(plan.tree.draft))
                self._choose_sent(plan)
                if level < LEAST_LEVELS or plan.objective < before:
                    growing.append(plan)
            live = growing

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        plans = [self.plans[draft.request_id] for draft in drafts]
        return [plan.tree.best(plan.nodes, plan.sent) for plan in plans]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return self.plans[draft.request_id].tree.expected(nodes)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        assert self.per_token is not None
        assert self.time is not None
        for verdict in verdicts:
            plan = self.plans[verdict.draft.request_id]
            accepted = len(verdict.path)
            if accepted and plan.expected:
                self.accepted += accepted
                self.expected += plan.expected
            if self.time.typical:
                cost = self._cost(plan, plan.sent)._replace(seconds=self.time.seconds())
                self.per_token.add(cost, accepted + 1)

    def forget(self, request_id: str) -> None:
        if self.per_token is not None:
            self.per_token.renew()

    @property
    def scale(self) -> float:
        """Return the ratio of accepted to expected tokens; 1 before the first accepted one."""
        return self.accepted / self.expected if self.expected else 1.0

    def _sizes(self, most: int) -> list[int]:
        """Return the numbers of nodes that a level or a verification may have, of which there are
        `most`.
        """
        options = self.options
        return list(range(options.step, min(options.nodes, most) + 1, options.step)) or [
            min(options.nodes, most)
        ]

    def _add_level(self, plan: _Plan, forward: "DraftForward", first_row: int, room: int) -> None:
        """Add the level below the nodes that were just forwarded, as wide as is expected to be
        best.
        """
        tree = plan.tree
        parents = plan.frontier
        plan.drafting_s += self._forward_s(plan, len(parents))
        rows = range(first_row, first_row + len(parents))
        bases = [tree.scores[node] for node in parents]
        most = min(self.options.nodes, room)
        chances = [exp(score) for score, _, _ in forward.likeliest(rows, bases, most, most)]
        sizes = self._sizes(len(chances))
        newest = tree.draft.tree.last
        tree.record_forward(parents, forward, first_row)
        if plan.levels:
            sent = plan.sent if plan.levels > 1 else self.options.nodes
            reached = tree.expected(plan.nodes)
            width = min(
                sizes,
                key=lambda size: self._objective(
                    self._cost(plan, sent, self._forward_s(plan, size)),
                    reached + sum(chances[:size]),
                ),
            )
        else:
            width = sizes[-1]
        tree.add_children(parents, forward, first_row, width, width)
        plan.frontier = [node for node in plan.nodes if node > newest]
        plan.levels += 1

    def _choose_sent(self, plan: _Plan) -> None:
        """Choose the number of nodes to send, of all that the tree has."""
        chances = sorted((plan.tree.expected([node]) for node in plan.nodes), reverse=True)

        def objective(size: int) -> float:
            return self._objective(self._cost(plan, size), sum(chances[:size]))

        plan.sent = min(self._sizes(len(chances)), key=objective)
        plan.objective = objective(plan.sent)
        plan.expected = sum(chances[: plan.sent])

    def _forward_s(self, plan: _Plan, nodes: int) -> float:
        """Return the seconds of a draft forward of so many nodes below those forwarded before."""
        return forward_s(
            self.latencies, [(nodes, plan.tree.draft.context_length - 1 + len(plan.tree.forwarded))]
        )

    def _cost(self, plan: _Plan, sent: int, further_s: float = 0.0) -> _Cost:
        """Return what the round takes if so many nodes are sent, after `further_s` more seconds of
        drafting.
        """
        drafts = [plan.tree.draft]
        drafting_s = plan.drafting_s + further_s
        verified_s = verify_s(self.latencies, drafts, [sent])
        prices = self.options.edge_price_per_hour, self.options.server_price_per_hour
        return _Cost(
            drafting_s + answer_s(self.latencies, drafts, [sent]),
            drafting_s * prices[0] + verified_s * prices[1],
        )

    def _objective(self, cost: _Cost, expected: float) -> float:
        """Return the blend of money and time per token, where `expected` drafted tokens are likely
        to be accepted.
        """
        assert self.per_token is not None
        tokens = 1 + expected * self.scale * (1 - self.options.margin)
        reference = self.per_token.reference
        weight = self.options.cost_weight
        money = cost.money / tokens / reference.money if reference.money else 0.0
        return weight * money + (1 - weight) * cost.seconds / tokens / reference.seconds
