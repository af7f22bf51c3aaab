"""A drafter whose tokens come with statistics that a test chooses: for what a policy makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.models.executors.base import Forward

SURE = NodeStats(1.0, 0.0, 1.0, 0.0, 1.0)


def at(**known: float) -> NodeStats:
    """A token of which this is known."""
    return replace(SURE, **known)


@dataclass(frozen=True)
class Known:
    """A distribution with known statistics, drawn from at random as far as anybody can tell."""

    node_stats: NodeStats
    sampled: bool = True

    def stats(self, row: int, token: int) -> NodeStats:
        return self.node_stats

    def probability(self, row: int, token: int) -> float:
        return self.node_stats.probability

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        return judge.score(self.node_stats, place)


@dataclass
class KnownDrafter:
    """One round of drafts with these statistics, as many tokens as there are; the i-th request is called `i`.

    `produced` are the tokens that each request has of its output: a round of one that has none brings its prompt in.
    """

    rows: Sequence[Sequence[NodeStats]]
    clock: ModelledClock = field(default_factory=ModelledClock)
    context: int = 100
    produced: int = 1
    drafts: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        sessions = [self._session(str(i)) for i in range(len(self.rows))]
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]

    def room(self, draft: Draft) -> int:
        return len(self.rows[int(draft.request_id)]) - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        grown = [draft for draft in drafts if self.room(draft) > 0]
        for draft in grown:
            draft.tree.add(
                7, draft.tree.last, Known(self.rows[int(draft.request_id)][draft.tree.last]), 0
            )
        return grown

    def verdicts(self, chosen: Sequence[list[int]], accepted: Sequence[int]) -> list[Verdict]:
        """Return the verdicts on chains of which the target accepted so many tokens."""
        verified = zip(self.drafts, chosen, accepted, strict=True)
        return [
            Verdict(draft, nodes, nodes[:count], 7, 1 + len(nodes))
            for draft, nodes, count in verified
        ]

    def _session(self, name: str) -> Session:
        request = Request(name, "test", (1,) * (self.context - self.produced), 1000)
        record = RequestRecord(name, "test", [])
        session = Session(request, RequestRandom(0, name), frozenset(), 0.0, record)
        session.tokens += [1] * self.produced
        return session


class TreeDrafter(KnownDrafter):
    """Says after each token what the text so far tells it to say, of a vocabulary of five."""

    table: dict[tuple[int, ...], list[float]]

    def awaits_answer(self, draft: Draft) -> bool:
        return True

    def room(self, draft: Draft) -> int:
        return 100 - draft.tree.last

    def expand(self, frontier: object) -> DraftForward:
        rows = [
            self.table.get(tuple(draft.tree.tokens[n] for n in draft.tree.path(node)), [0.2] * 5)
            for draft, nodes in frontier  # type: ignore[attr-defined]
            for node in nodes
        ]
        return DraftForward(Forward([torch.tensor(rows).log()]), Sampler(temperature=1.0))
