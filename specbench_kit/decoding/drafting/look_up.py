"""Drafting without a model: the next tokens are looked up in text that exists already, such as the
request's own.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
from torch import Tensor

from specbench_kit.core.errors import PolicyError, SkitError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.chains import ChainDrafter
from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.decoding.session import Session


class Continuation(NamedTuple):
    """A token that may come next; `probability` is an estimate, 1 if there is none."""

    token: int
    probability: float = 1.0


class TextIndex(Protocol):
    """The text of requests, as a drafter remembers it."""

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        """Add a request's text so far: its prompt and its output."""

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        """Yield what may follow `tokens`, which are those that were learned and what the round has
        drafted so far.
        """

    def forget(self, request_id: str) -> None:
        """Forget a finished request."""


@dataclass(frozen=True)
class LookUp(Drafting):
    """A drafter without a model; a deployment's drafting device spends `lookup_s` seconds per
    drafted token.

    `min` is the length of the shortest match that drafts, in tokens.
    """

    min: int = field(default=1, kw_only=True)
    lookup_s: float = field(default=0.0, kw_only=True)
    capability: ClassVar[Capability] = Capability.TOKENS
    recordable: ClassVar[bool] = True
    drawn: ClassVar[bool] = False

    @property
    def models(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def index(self) -> TextIndex:
        """Return an empty index."""

    def source(self, parts: DrafterParts) -> "LookUpDrafter":
        return LookUpDrafter(self.display_name, self.index(), parts.clock, parts.capacity)

    def latency(self, draft: LatencyModel) -> LatencyModel:
        return TableModel((self.lookup_s,))


@dataclass(slots=True)
class _LookedUp:
    """The result of a look-up, and the node below which its next token belongs."""

    continuations: Iterator[Continuation]
    node: int


class LookUpDrafter(ChainDrafter):
    """Drafts chains of what an index finds, with one look-up per chain and round; a chain ends
    where nothing is found, or what is found is forbidden by the request's grammar.

    Looked-up tokens are not drawn at random, so they are verified like any chosen tokens.
    """

    def __init__(self, name: str, index: TextIndex, clock: Clock, capacity: int) -> None:
        super().__init__(name, clock)
        self._index = index
        self._capacity = capacity
        self._looked_up: dict[str, _LookedUp] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Learn what the last round committed, and start a round, from what was left to continue
        from if there is.
        """
        self._looked_up.clear()
        with self.clock.phase("draft"):
            for session in sessions:
                self._index.learn(session.request.id, session.tokens)
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many nodes the tree can still take before the context is full."""
        return self._capacity - draft.context_length - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the next looked-up token to each chain, and return the drafts that got one."""
        with self.clock.phase("draft"):
            return [draft for draft in drafts if self.room(draft) > 0 and self._grow(draft)]

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Keep what lies below the next `root`; accepted tokens are learned when the next round
        begins.
        """
        if root is not None:
            self._continue(draft, root)

    def release(self, session: Session) -> None:
        """Learn the rest of a finished request's output, and forget the request."""
        super().release(session)
        self._index.learn(session.request.id, session.tokens)
        self._index.forget(session.request.id)

    def _find(self, draft: Draft, path: Sequence[int]) -> Iterator[Continuation]:
        """Yield what may follow the committed tokens and the drafted `path`."""
        return self._index.look_up(draft.request_id, [*draft.session.tokens, *path])

    def _grow(self, draft: Draft) -> bool:
        tree = draft.tree
        looked_up = self._looked_up.get(draft.request_id)
        # A cascade adds a token of its own where it rejects a guess: from there the text is looked
        # up anew.
        if looked_up is None or looked_up.node != tree.last:
            path = [tree.tokens[node] for node in tree.path(tree.last)]
            looked_up = _LookedUp(self._find(draft, path), tree.last)
            self._looked_up[draft.request_id] = looked_up
        following = next(looked_up.continuations, None)
        if following is None or not draft.allows(following.token, tree.last):
            return False
        # A trace holds 32 bits of it, and a replay has to decide as the live run did.
        source = LookUpDistribution(self._name, float(np.float32(following.probability)))
        looked_up.node = tree.add(following.token, tree.last, source, 0)
        return True


@dataclass(frozen=True, slots=True)
class LookUpDistribution:
    """The source of a looked-up token: nothing is known of its distribution but the token's own
    probability.
    """

    drafter: str
    token_probability: float
    sampled: ClassVar[bool] = False

    def probability(self, row: int, token: int) -> float:
        return self.token_probability

    def stats(self, row: int, token: int) -> NodeStats:
        self._refuse()

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PolicyError(
            f"drafter '{self.drafter}' has no statistics of a draft distribution: choose another drafter"
        )


class NoDrafting(LookUp):
    """Drafts nothing, for methods that do not draft."""

    display_name = "none"

    def index(self) -> TextIndex:
        return _EmptyIndex()


class _EmptyIndex:
    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        """Remember nothing."""

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        return iter(())

    def forget(self, request_id: str) -> None:
        """Forget nothing."""


@drafters.register("prompt-lookup")
@dataclass(frozen=True)
class PromptLookupDrafting(LookUp):
    """Drafts what followed the first occurrence, in the request's own text, of its last `min` to
    `max` tokens.

    The longest n-gram that occurred before counts.
    """

    max: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise SkitError(
                f"prompt-lookup: min must lie in 1..max, not {self.min} with max {self.max}"
            )

    def index(self) -> TextIndex:
        return _FirstOccurrences(range(self.min, self.max + 1))


class _FirstOccurrences:
    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._after: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
        """By request: n-gram -> position of the token that first followed it."""
        self._texts: defaultdict[str, list[int]] = defaultdict(list)

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        text = self._texts[request_id]
        after = self._after[request_id]
        for position in range(len(text), len(tokens)):
            text.append(tokens[position])
            for length in (n for n in self._lengths if n <= position):
                after.setdefault(tuple(tokens[position - length : position]), position)

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        after = self._after[request_id]
        text = self._texts[request_id]
        grams = (tuple(tokens[-length:]) for length in reversed(self._lengths))
        position = next((after[gram] for gram in grams if gram in after), len(text))
        return (Continuation(token) for token in text[position:])

    def forget(self, request_id: str) -> None:
        del self._texts[request_id], self._after[request_id]
