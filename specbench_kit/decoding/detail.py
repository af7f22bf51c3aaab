"""The token trees of a request's rounds, kept for people who look at what was drafted and what
became of it.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from specbench_kit.core.typed_json import decode


class RoundDetail(msgspec.Struct, frozen=True):
    """The token tree of one round and the target's verdict on it.

    Node n has token `tokens[n]`, parent `parents[n]` and draft probability `probabilities[n]`; node 0 is the token
    committed last. `path` lists the accepted nodes among the `submitted` ones, and the first `committed` tokens of the
    path and the `bonus` token joined the output. Nodes 1 to `inherited` were drafted in the previous round; the newest
    `proactive` nodes were drafted while the target verified. `drafter` names the drafter if the
    method has several to choose from.
    """

    tokens: list[int]
    parents: list[int]
    probabilities: list[float]
    submitted: list[int]
    path: list[int]
    bonus: int = msgspec.field(name="extra")
    committed: int
    inherited: int
    proactive: int
    drafter: str = ""


class RequestDetail(msgspec.Struct, frozen=True):
    """The rounds of one finished request: a line of `rounds_detail.jsonl`."""

    request_id: str
    rounds: list[RoundDetail]

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
