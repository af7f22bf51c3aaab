"""What policies and loops ask of whatever drafts: a model, an index of the text so far, or a recorded trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from specbench_kit.decoding.clock import Clock, Phase
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
        """Committed tokens, the root included."""
        return len(self.session.tokens)

    @property
    def reference(self) -> Sequence[int]:
        """The target's answer from here on, where the method may read it."""
        return self.session.request.reference[self.session.produced :]


class Forwarded(NamedTuple):
    """A forward of one of a drafter's models: new tokens of each request, and those in KV before them."""

    model: str
    phase: Phase
    rows: Mapping[str, Row]


@runtime_checkable
class ReportsForwards(Protocol):
    """A source that says what it forwards, as this does not follow from what it drafts."""

    def forwards(self) -> Sequence[Forwarded]:
        """One after the other, since the last call."""


class DraftSource(Protocol):
    """What the loop asks of whatever drafts: a model, or a recorded trace."""

    @property
    def drafts(self) -> list[Draft]:
        """The requests of this round."""

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees, or with what was kept of the last."""

    def room(self, draft: Draft) -> int:
        """Nodes that the tree can still take."""

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; returns the drafts that had room for it."""

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes; row i is the distribution after the i-th node, in order."""

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None, states: Tensor | None = None) -> None:
        """Take note of the accepted nodes, and of the node that the next round's tree begins at if there is one.

        `states` are the verdict's, where the drafter asked for any.
        """

    def release(self, session: Session) -> None:
        """Forget a finished request."""


class Drafter(DraftSource, Protocol):
    """What a policy asks: drafts, and the time."""

    @property
    def clock(self) -> Clock:
        """The run's clock, for decisions that depend on time."""

    def awaits_answer(self, draft: Draft) -> bool:
        """Whether the answer to what was sent has not arrived yet."""
