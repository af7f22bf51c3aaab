"""What drafters without a model share: they look the next tokens up in text that is there already."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, NoReturn, Protocol

from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting
from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


class Continuation(NamedTuple):
    """A token that may come next. `probability` guesses how likely it is; 1 where nothing is known."""

    token: int
    probability: float = 1.0


class Index(Protocol):
    """The text of requests, as a drafter remembers it."""

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        """Take in what a request has come to: its prompt, and its output so far."""

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        """What may follow `tokens`: those that were learned, and behind them what the round has drafted."""

    def forget(self, request_id: str) -> None:
        """A request has ended."""


@dataclass(frozen=True)
class LookUp(Drafting):
    """A drafter without a model; a deployment's drafting device spends `lookup_s` seconds per drafted token."""

    lookup_s: float = field(default=0.0, kw_only=True)
    capability: ClassVar[Capability] = Capability.TOKENS
    drawn: ClassVar[bool] = False

    @property
    def models(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def index(self) -> Index:
        """An empty one."""

    def source(self, parts: DrafterParts) -> "LookUpDrafter":
        return LookUpDrafter(self.display_name, self.index(), parts.clock, parts.capacity)

    def latency(self, draft: LatencyModel) -> LatencyModel:
        return TableModel((self.lookup_s,))


@dataclass(slots=True)
class _Offer:
    """What a look-up found, and where its next token goes: a chain that went another way is looked up again."""

    found: Iterator[Continuation]
    node: int


class LookUpDrafter:
    """Chains of what an index finds, one look-up per chain and round; where it finds nothing the chain does not grow.

    What was looked up is no draw at random: its tokens are verified as any tokens that were chosen.
    """

    def __init__(self, name: str, index: Index, clock: Clock, capacity: int) -> None:
        self.drafts: list[Draft] = []
        self.clock = clock
        self._name, self._index, self._capacity = name, index, capacity
        self._offers: dict[str, _Offer] = {}

    def awaits_answer(self, draft: Draft) -> bool:
        """Nothing arrives before all is drafted."""
        return True

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees, and learn what the last one brought."""
        self._offers.clear()
        with self.clock.phase("draft"):
            for session in sessions:
                self._index.learn(session.request.id, session.tokens)
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]
        return self.drafts

    def room(self, draft: Draft) -> int:
        """Nodes that the tree can still take before the context is full."""
        return self._capacity - draft.context_length - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the next token that was found to each chain; returns the drafts that had room and an offer."""
        with self.clock.phase("draft"):
            return [draft for draft in drafts if self.room(draft) > 0 and self._grow(draft)]

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """There are no distributions to grow a tree by."""
        raise PolicyError(f"drafter '{self._name}' gives chains, and this method grows trees: choose another drafter")

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None, states: Tensor | None = None) -> None:
        """What was accepted is learned when the next round begins."""

    def release(self, session: Session) -> None:
        """Forget a finished request, once all of it was learned."""
        self._index.learn(session.request.id, session.tokens)
        self._index.forget(session.request.id)

    def _grow(self, draft: Draft) -> bool:
        tree, offer = draft.tree, self._offers.get(draft.request_id)
        if offer is None or offer.node != tree.last:
            offer = self._offers[draft.request_id] = _Offer(self._look_up(draft), tree.last)
        found = next(offer.found, None)
        if found is None:
            return False
        offer.node = tree.add(found.token, tree.last, LookedUp(self._name, found.probability), 0)
        return True

    def _look_up(self, draft: Draft) -> Iterator[Continuation]:
        path = draft.tree.path(draft.tree.last)
        tokens = [*draft.session.tokens, *(draft.tree.tokens[node] for node in path)]
        return self._index.look_up(draft.request_id, tokens)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Where a found token comes from: of its distribution no more is known than its own probability."""

    drafter: str
    known: float
    sampled: ClassVar[bool] = False

    def probability(self, row: int, token: int) -> float:
        return self.known

    def stats(self, row: int, token: int) -> NodeStats:
        self._refuse()

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PolicyError(f"drafter '{self.drafter}' has no statistics of a draft distribution: choose another drafter")


class NoDrafting(LookUp):
    """Drafts nothing, for methods that do not draft."""

    display_name = "none"

    def index(self) -> Index:
        return _Empty()


class _Empty:
    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        """Nothing is remembered."""

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        return iter(())

    def forget(self, request_id: str) -> None:
        """Nothing is remembered."""
