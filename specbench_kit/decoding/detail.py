"""The trees of a request's rounds, for those who want to see what was drafted and what came of it."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """One round's tree and its verdict; a node is a place in `tokens` and `parents`, and node 0 was committed before.

    `probabilities` are the draft model's, of each token at its place; `path` are the accepted of the `submitted` nodes,
    `extra` the target's own next token, and the first `committed` of both joined the output. Nodes from 1 to
    `inherited` were drafted in the round before, the newest `proactive` ones while the target verified.
    """

    tokens: list[int]
    parents: list[int]
    probabilities: list[float]
    submitted: list[int]
    path: list[int]
    extra: int
    committed: int
    inherited: int
    proactive: int


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """One finished request's rounds: a line of `rounds_detail.jsonl`."""

    request_id: str
    rounds: list[RoundDetail]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "RequestDetail":
        """What `to_json` wrote."""
        return cls(fields["request_id"], [RoundDetail(**found) for found in fields["rounds"]])


class Finished(Protocol):
    """A round of one request, as its loop knows it."""

    @property
    def request_id(self) -> str:
        """Whose it was."""

    def detail(self) -> RoundDetail:
        """What it has left behind."""


class Details:
    """Gathers the rounds of requests on their way; `note` is for `Loop.on_round`."""

    def __init__(self) -> None:
        self._rounds: defaultdict[str, list[RoundDetail]] = defaultdict(list)

    def note(self, rounds: Sequence[Finished]) -> None:
        """Take in a round of every request of the batch."""
        for one in rounds:
            self._rounds[one.request_id].append(one.detail())

    def take(self, request_id: str) -> RequestDetail:
        """A finished request's rounds, once."""
        return RequestDetail(request_id, self._rounds.pop(request_id, []))
