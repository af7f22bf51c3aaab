"""The token trees of a request's rounds, kept for people who look at what was drafted and what
became of it.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from specbench_kit.core.typed_json import decode


class RoundDetail(msgspec.Struct, frozen=True):
    """The token tree of one round and the target's verdict on it.

    Nodes are numbered in the order in which they were drafted; node 0 is the token committed last.
    """

    tokens: Annotated[list[int], Meta(description="id of each node's token")]
    parents: Annotated[list[int], Meta(description="parent of each node")]
    probabilities: Annotated[
        list[float], Meta(description="draft model's probability of each node")
    ]
    submitted: Annotated[list[int], Meta(description="nodes that were sent to be verified")]
    path: Annotated[list[int], Meta(description="submitted nodes that the target accepted")]
    bonus: Annotated[
        int, Meta(description="id of the token that the target gave after the accepted ones")
    ] = msgspec.field(name="extra")
    committed: Annotated[
        int,
        Meta(
            description="tokens of the path and the bonus token that joined the output, from the first on"
        ),
    ]
    inherited: Annotated[
        int,
        Meta(
            description="nodes that were drafted in the previous round: those from 1 up to this number"
        ),
    ]
    proactive: Annotated[
        int, Meta(description="nodes that were drafted while the target verified, the newest ones")
    ]
    drafter: Annotated[
        str,
        Meta(
            description="drafter of the tokens if the method has several to choose from; empty otherwise"
        ),
    ] = ""


class RequestDetail(msgspec.Struct, frozen=True):
    """The rounds of one finished request: a line of `rounds_detail.jsonl`."""

    request_id: Annotated[str, Meta(description="id of the request")]
    rounds: Annotated[list[RoundDetail], Meta(description="the rounds of the request")]

    def to_json(self) -> str:
        """Return the line of `rounds_detail.jsonl`, without its end."""
        return json.dumps(msgspec.to_builtins(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RequestDetail":
        """Return what `to_json` wrote; raise ValueError if the line is damaged."""
        return decode(cls, line)


class FinishedRound(Protocol):
    """One request's finished round, as an engine's loop knows it."""

    @property
    def request_id(self) -> str:
        """The id of the request."""

    def detail(self) -> RoundDetail:
        """Return the round's tree and verdict."""


class DetailCollector:
    """Collects the rounds of running requests; `note` is meant for `Loop.on_round`."""

    def __init__(self) -> None:
        self._rounds: defaultdict[str, list[RoundDetail]] = defaultdict(list)

    def note(self, rounds: Sequence[FinishedRound]) -> None:
        """Add one round of every request in the batch."""
        for finished_round in rounds:
            self._rounds[finished_round.request_id].append(finished_round.detail())

    def take(self, request_id: str) -> RequestDetail:
        """Return the rounds of a finished request and forget them."""
        return RequestDetail(request_id, self._rounds.pop(request_id, []))
