"""What policies and engines ask of a drafter: a draft model, an index of the text so far, or a
recorded trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.constraint import Allowed
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


@dataclass(slots=True)
class Draft:
    """One request's round, as a policy sees it."""

    session: Session
    tree: TokenTree
    kv_nodes: dict[int, int] = field(default_factory=dict)
    """Tree node -> provisional index in the draft model's slot, for the nodes forwarded so far."""
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = self.session.request.id

    @property
    def context_length(self) -> int:
        """The number of committed tokens, the root included."""
        return len(self.session.tokens)

    def allowed_after(self, nodes: Iterable[int]) -> list[Allowed]:
        """Return what the request's grammar allows after each of some nodes, 0 being the root."""
        grammar = self.session.grammar
        if grammar is None:
            return [None for _ in nodes]
        return [grammar.allowed(self._tokens_to(node)) for node in nodes]

    def allows(self, token: int, parent: int) -> bool:
        """Return whether the request's grammar allows a token below a node."""
        grammar = self.session.grammar
        return grammar is None or grammar.allows(self._tokens_to(parent), token)

    def forbidden(self, nodes: Iterable[int]) -> int:
        """Return how many of some nodes the grammar forbids; what hangs below these is not
        counted.
        """
        tree = self.tree
        return sum(not self.allows(tree.tokens[node], tree.parents[node]) for node in nodes)

    def forced(self, nodes: Iterable[int]) -> int:
        """Return how many of some nodes are the only token that the grammar allows in their
        place.
        """
        grammar = self.session.grammar
        if grammar is None:
            return 0
        tree = self.tree
        return sum(
            grammar.only(self._tokens_to(tree.parents[node])) == tree.tokens[node] for node in nodes
        )

    def _tokens_to(self, node: int) -> list[int]:
        tokens = self.tree.tokens
        return [tokens[above] for above in self.tree.path(node)]

    @property
    def reference(self) -> Sequence[int]:
        """The rest of the target's answer, for methods that may read it."""
        return self.session.request.reference[self.session.produced :]


class Forwarded(NamedTuple):
    """One forward of a drafter's model: by request, the number of new tokens and of tokens in KV
    before them.
    """

    model: str
    phase: Phase
    rows: Mapping[str, Row]


class PlannedRound(NamedTuple):
    """A round of a plan for a whole answer: the tokens that it drafts, all of which are right.

    `server_continues` says that the server decodes the next round by itself, without waiting for the device.
    """

    drafted: int
    server_continues: bool


@runtime_checkable
class ReportsForwards(Protocol):
    """A drafter whose forwards cannot be derived from its tree, and which therefore reports
    them.
    """

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards since the last call, in order."""


class DraftSource(Protocol):
    """A drafter as an engine sees it."""

    @property
    def drafts(self) -> list[Draft]:
        """The drafts of this round, one per request."""

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round and return its drafts: empty trees, or what the last round's trees left to
        continue from.
        """

    def room(self, draft: Draft) -> int:
        """Return how many nodes the tree can still take."""

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain, and return the drafts that had room for it."""

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes; row i of the result is the distribution after the i-th node, in
        order.
        """

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted nodes `path`, and keep what lies below `root` if the next round's
        tree begins there.

        `states` are the verdict's hidden states, if the drafter reads any.
        """

    def release(self, session: Session) -> None:
        """Free what a finished request held."""

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return how many tokens of a draft at each offset of the answer's rest would be right, up
        to `longest`.

        The answer is the draft's `reference`. This takes none of the run's time; None if it cannot
        be known beforehand.
        """


class Drafter(DraftSource, Protocol):
    """A drafter as a policy sees it, which needs the time too."""

    @property
    def clock(self) -> Clock:
        """The run's clock, for decisions that depend on time."""

    def awaits_answer(self, draft: Draft) -> bool:
        """Return whether the verdict on the draft that was sent has not arrived yet."""

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        """Return whether a node, sent when it was drafted, was at the server when its last
        verification ended.
        """

    def fastest_rounds(
        self, draft: Draft, longest: int, *, server_decodes: bool
    ) -> Mapping[int, PlannedRound] | None:
        """Return the fastest rounds for the rest of the answer, by the number of its tokens before
        each.

        The answer is the draft's `reference`, which only a bound may read. Drafts have up to `longest` tokens; with
        `server_decodes`, rounds may be left to the server. None if times or drafts are not known beforehand.
        """


class LocalDrafter:
    """What drafters share whose verdicts come from this machine: the drafts of a round, and those
    that go on.
    """

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._continued: dict[str, Draft] = {}
        """Drafts of the next round that continue from this round's trees."""

    def awaits_answer(self, draft: Draft) -> bool:
        """Return true: no verdict arrives before all is drafted."""
        return True

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        """Return true: no link is crossed."""
        return True

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return None: it is not known beforehand what would be drafted."""
        return None

    def fastest_rounds(
        self, draft: Draft, longest: int, *, server_decodes: bool
    ) -> Mapping[int, PlannedRound] | None:
        """Return None: the times of this machine are not known beforehand."""
        return None

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round and return its drafts: empty trees, or what the last round's trees left to
        continue from.
        """
        continued = self._continued
        self._continued = {}
        self.drafts = [
            continued.get(session.request.id) or Draft(session, TokenTree(session.tokens[-1]))
            for session in sessions
        ]
        return self.drafts

    def release(self, session: Session) -> None:
        """Forget what a finished request would have continued from."""
        self._continued.pop(session.request.id, None)

    def _continue(self, draft: Draft, root: int, kv_nodes: dict[int, int] | None = None) -> None:
        """Begin the next round of a request with what lies below a node of this round's tree."""
        self._continued[draft.request_id] = Draft(
            draft.session, draft.tree.rooted_at(root), kv_nodes or {}
        )
