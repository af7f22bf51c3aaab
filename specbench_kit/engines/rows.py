"""Following requests through an engine's batch by their tokens: rows move, leave and come back,
tokens do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.session import Session

Tokens = NDArray[np.int32]


class EngineRow(NamedTuple):
    """One row of the engine's batch: the request's prompt and output, of which the last `new`
    tokens are new.

    A row without new tokens is a prompt, or a resumed request, that the engine has not processed
    whole.
    """

    text: Tokens
    new: int


@dataclass(slots=True)
class Proposal:
    """A draft that the engine was given, of which it verifies `nodes` or the first few of them.

    It is `settled` once the drafter has dropped what it held for it, and `dropped` if the engine
    never verified it.
    """

    draft: Draft
    nodes: list[int]
    settled: bool = False
    dropped: bool = False

    @property
    def tokens(self) -> list[int]:
        """The draft tokens that the engine was given."""
        return [self.draft.tree.tokens[node] for node in self.nodes]

    def accepted(self, new: Sequence[int]) -> int:
        """Return how many draft tokens stand at the beginning of the new tokens, whose last is the
        target's own.
        """
        count = 0
        for drafted, token in zip(self.tokens, new[:-1], strict=False):
            if self.dropped or drafted != token:
                break
            count += 1
        return count


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """A request of the engine, found again in every call by its text."""

    session: Session
    text: Tokens
    row: int
    call: int
    """The number of the last call whose batch it was in."""
    proposal: Proposal | None = None
    has_state: bool = False
    """True if the drafter holds something for it, such as KV."""
    ended: bool = False
    """True if its output reached an end, so that the engine is not expected to go on with it."""

    def continues(self, row: EngineRow) -> bool:
        """Return whether the row is this request one step later."""
        before = len(row.text) - row.new
        if len(self.text) != before or not np.array_equal(self.text, row.text[:before]):
            return False
        # Two requests with the same text differ by their drafts: more than one new token must have
        # been drafted.
        if row.new < 2:
            return True
        return (
            self.proposal is not None
            and self.proposal.accepted(row.text[before:].tolist()) == row.new - 1
        )

    def continues_after_gap(self, row: EngineRow) -> bool:
        """Return whether the row is this request several steps later, during which the drafter was
        not called.
        """
        known = len(self.text)
        return (
            not self.ended
            and known < len(row.text) - row.new
            and np.array_equal(self.text, row.text[:known])
        )


class RequestFollower:
    """Finds the request of every row: the one whose text goes on there, by preference in the same
    place.
    """

    def __init__(self, open_request: Callable[[EngineRow, int, int], FollowedRequest]) -> None:
        self.requests: list[FollowedRequest] = []
        """All requests that may come back, those first that were not in the batch for the longest
        time.
        """
        self._open = open_request
        self._call = 0

    def match(self, rows: Sequence[EngineRow]) -> list[FollowedRequest]:
        """Return the request of every row, which is a new one if no known text goes on there."""
        self._call += 1
        running = {
            request.row: request for request in self.requests if request.call == self._call - 1
        }
        found = {
            number: running[number]
            for number, row in enumerate(rows)
            if number in running and running[number].continues(row)
        }
        taken = set(found.values())
        free = [request for request in self.requests if request not in taken]
        for number, row in enumerate(rows):
            if number in found:
                continue
            known = _first(free, row, self._call - 1)
            if known is not None:
                free.remove(known)
            found[number] = known or self._open(row, number, self._call)
        for number, request in found.items():
            request.row, request.call = number, self._call
        self.requests = [*free, *(found[number] for number in range(len(rows)))]
        return self.requests[len(free) :]

    @property
    def away(self) -> list[FollowedRequest]:
        """The requests that were not in the batch of the last call, longest away first."""
        return [request for request in self.requests if request.call < self._call]

    def forget(self, request: FollowedRequest) -> None:
        """Follow a request no longer."""
        self.requests.remove(request)


def _first(
    free: Sequence[FollowedRequest], row: EngineRow, last_call: int
) -> FollowedRequest | None:
    """Return the request that goes on in the row; None if there is none."""
    for request in free:
        if request.continues(row):
            return request
    # A follow-up question repeats a text that has ended; only a request of the last call can have
    # gone on unseen.
    gone_on = [
        request
        for request in free
        if request.call == last_call and request.continues_after_gap(row)
    ]
    return max(gone_on, key=lambda request: len(request.text), default=None)
