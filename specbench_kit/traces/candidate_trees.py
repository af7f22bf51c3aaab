"""The draft model's candidates below the places of an answer, which trees are made of.

A trace stores them where the methods that it was recorded for asked for them. A node stands for a
text: node t of the trunk for the prompt and the first t tokens of the target's text, every other
node for that of its parent and one token more. Trees from different places share nodes, because a
tree whose tokens are right goes along the trunk.

Of a node's next tokens, the likeliest are stored as far as a method was told of them, and the
log-probability of the best that is not. A node is not stored at all if a method that expanded it
was told of none of its tokens, because all are less likely than others that it was told of: this
can be known without the draft model, since no token is likelier than the text above it. So it can
be decided for any question whether the stored candidates answer it; one that they do not answer is
an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError

NO_INTEGERS = np.zeros(0, np.int32)
NO_NUMBERS = np.zeros(0, np.float32)


class BeyondRecord(SkitError):
    """A method asked for more of the draft model's candidates than a trace holds."""

    def __init__(self, recorded_for: Sequence[str]) -> None:
        super().__init__(
            f"its tree asks for more of the draft model than the trace holds, which has the candidates of "
            f"{', '.join(recorded_for)}: record a trace with --trees for this method and its options, or run it live"
        )


class Candidates(NamedTuple):
    """The likeliest next tokens of a node, best first, with their log-probabilities.

    `rest` is the log-probability of the best token that is not among them; minus infinity if there is none.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    rest: float


UNKNOWN = -1
"""Stands for every node that is not recorded."""
NO_CANDIDATES = Candidates(NO_INTEGERS, NO_NUMBERS, 0.0)
"""What is known of such a node: no token has a probability above 1."""


class CandidateSource(Protocol):
    """Nodes and their candidates: those of a trace, or of a draft model while a trace is
    recorded.
    """

    recorded_for: Sequence[str]
    """The methods whose questions are answered."""

    def candidates(self, node: int) -> Candidates:
        """Return the candidates of a node."""

    def child(self, node: int, token: int) -> int:
        """Return the node for a token after another node; `UNKNOWN` if it is not recorded."""

    def told(self, node: int, count: int) -> None:
        """Note that a method was told of the first `count` candidates of a node."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateColumns:
    """The columns of a request's candidates in a trace file.

    Node n has `counts[n]` candidates, and `rest[n]` beyond them; the candidates of all nodes follow each other in
    `tokens`, `logprobs` and `expanded`. The first nodes are the trunk's. Each `expanded` candidate has a node of its
    own, and these nodes have the order of their candidates. A trunk's token leads to the next node of the trunk.
    """

    counts: NDArray[np.int32] = field(default_factory=lambda: NO_INTEGERS)
    rest: NDArray[np.float32] = field(default_factory=lambda: NO_NUMBERS)
    tokens: NDArray[np.int32] = field(default_factory=lambda: NO_INTEGERS)
    logprobs: NDArray[np.float32] = field(default_factory=lambda: NO_NUMBERS)
    expanded: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CandidateColumns):
            return NotImplemented
        names = [column.name for column in fields(self)]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def trunk(self) -> int:
        """The number of nodes of the trunk."""
        return len(self.counts) - int(self.expanded.sum())

    def fault(self, text: int) -> str:
        """Return what cannot be true of the candidates for a target's text of so many tokens, or an
        empty text.
        """
        lengths = {len(self.tokens), len(self.logprobs), len(self.expanded), int(self.counts.sum())}
        if len(lengths) > 1 or len(self.rest) != len(self.counts) or (self.counts < 0).any():
            return "has candidates of which parts are missing"
        if self.trunk not in (0, text):
            return "does not have the candidates of every place"
        parents = np.repeat(np.arange(len(self.counts)), self.counts)[self.expanded]
        if (parents >= self.trunk + np.arange(len(parents))).any():
            return "has a node before its parent"
        if len(self.tokens) and (self.tokens.min() < 0 or not np.isfinite(self.logprobs).all()):
            return "has candidates that are no tokens or have no probabilities"
        return ""


class StoredCandidates:
    """The candidates of one recorded request; `text` is what the target says, behind the answer
    too.
    """

    def __init__(
        self, columns: CandidateColumns, text: Sequence[int], recorded_for: Sequence[str]
    ) -> None:
        self.recorded_for = recorded_for
        self._columns = columns
        self._text = text
        self._starts = [0, *np.cumsum(columns.counts).tolist()]
        self._rest: list[float] = columns.rest.tolist()
        self._nodes = np.where(
            columns.expanded, columns.trunk - 1 + np.cumsum(columns.expanded), UNKNOWN
        )

    def candidates(self, node: int) -> Candidates:
        """Return the candidates of a node."""
        if node == UNKNOWN:
            return NO_CANDIDATES
        rows = slice(self._starts[node], self._starts[node + 1])
        return Candidates(
            self._columns.tokens[rows], self._columns.logprobs[rows], self._rest[node]
        )

    def child(self, node: int, token: int) -> int:
        """Return the node for a token after another node; `UNKNOWN` if it is not recorded."""
        if node == UNKNOWN:
            return UNKNOWN
        if follows_trunk(node, token, self._text):
            return node + 1
        start, end = self._starts[node : node + 2]
        for candidate in np.flatnonzero(self._columns.tokens[start:end] == token):
            return int(self._nodes[start + candidate])
        return UNKNOWN

    def told(self, node: int, count: int) -> None:
        """Do nothing: what is recorded stays as it is."""


def follows_trunk(node: int, token: int, text: Sequence[int]) -> bool:
    """Return whether a token after a node leads to the next node of the trunk."""
    return node < len(text) - 1 and token == text[node]
