"""What one decoded request leaves behind: the lines of `requests.jsonl`."""

import json
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

from specbench_kit.core.plain_text import one_line
from specbench_kit.decoding.json_fields import all_checked, checked, parse, shown

TimeKind = Literal["measured", "modelled"]
FinishReason = Literal["eos", "length", "error"]
EXPECTED_DIGITS = 3
"""Decimals of `RoundRecord.expected`: fewer than what a predictor's arithmetic leaves open."""


@dataclass(slots=True)
class RoundRecord:
    """One target verification of one request.

    `drafted` tokens were produced by the draft model, `submitted` of them were sent, `accepted` of those
    matched, and `committed` tokens joined the output (accepted + 1, less what the end cuts off). Seconds are
    this request's share of the batch's phases, so that sums over requests are busy seconds; `prefill_s` is the
    draft model's, the target's lies in `verify_s` of the first round. `end_s` is when the round's tokens were
    committed, since the request's arrival.

    Of the drafted tokens, `proactive` were drafted while the target verified; `aligned`: they began at the very token
    that the target gave, so the next round goes on from them; `reused` of the accepted tokens came from the round
    before in this way.

    A pipeline's round lasts until it has to be filled anew: `accepted` tokens were found in flight, `steps` is how
    often every stage worked, and `commits_s` when each token was committed, since the request's arrival.

    `deepest` is the largest depth below the root at which a token was submitted; records of older kits and of other
    tools do not say it.

    Of a tree, `parents` holds every submitted node's parent and `path` the accepted nodes, as places among the
    submitted ones from 1 on; 0 is the token committed last. Both are empty for a chain.

    `padded` says how the request lay in a verified batch whose rounding depends on its shape: rows, which of them it
    was, new tokens and keys per row, and the column from which logits were computed (see `Padding` for the order).

    `expected` is how many of the submitted tokens the policy reckoned with to be accepted, where it decides by a
    chance of that; a line holds it only there.
    """

    drafted: int
    submitted: int
    accepted: int
    committed: int
    prefill_s: float
    draft_s: float
    policy_s: float
    link_s: float
    queue_s: float
    verify_s: float
    commit_s: float
    end_s: float
    proactive: int = 0
    aligned: bool = False
    reused: int = 0
    steps: int = 0
    commits_s: list[float] = field(default_factory=list)
    deepest: int | None = None
    parents: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    padded: list[int] = field(default_factory=list)
    expected: float | None = None

    @property
    def first_s(self) -> float:
        """When the round's first token was committed."""
        return self.commits_s[0] if self.commits_s else self.end_s


NAMES = ("request_id", "category", "error")
"""Fields that stand in tables and on terminals."""
MAY_BE_UNKNOWN = (
    "drafted",
    "submitted",
    "prefill_s",
    "draft_s",
    "policy_s",
    "link_s",
    "queue_s",
    "verify_s",
    "commit_s",
    "end_s",
)
"""Fields of a round that hardly any other tool records."""


@dataclass(slots=True)
class RequestRecord:
    """One request from arrival to its last token; times in seconds since its arrival.

    `finished_s` alone is on the run's clock, which goes on where a resumed run had stopped. `repeat` counts from 0
    where a run asks the same request several times.

    Where the draft model is beyond a link, `colocated_s` is what `e2e_s` would be with it beside the target, over the
    same rounds, and `colocated_draft_s` what drafting would take of that.

    Of a request that another tool decoded, None stands for what the tool does not say: token by token in `output_ids`,
    whose length is known, and in the rounds.
    """

    request_id: str
    category: str
    prompt_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    error: str | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    finished_s: float | None = None
    time_kind: TimeKind = "measured"
    repeat: int = 0
    rounds: list[RoundRecord] = field(default_factory=list)
    colocated_s: float | None = None
    colocated_draft_s: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What no two records of one method in a run share."""
        return self.request_id, self.repeat

    @property
    def has_token_ids(self) -> bool:
        """Whether it is known which tokens the output has."""
        tokens: list[int | None] = [*self.output_ids]
        return None not in tokens

    def finish(self, output_ids: list[int], reason: FinishReason, now_s: float) -> None:
        """Note what came out, and the times that follow from the rounds."""
        self.output_ids, self.finish_reason, self.finished_s = output_ids, reason, now_s
        self.ttft_s, self.e2e_s = self.rounds[0].first_s, self.rounds[-1].end_s
        if len(output_ids) > 1:
            self.tpot_s = (self.e2e_s - self.ttft_s) / (len(output_ids) - 1)

    def to_json(self) -> str:
        """One line of `requests.jsonl`; a number that is not finite is a ValueError."""
        # Not `asdict`, which copies every number of every round on its own: that takes four times as long.
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found["rounds"] = [_round_fields(one) for one in self.rounds]
        return json.dumps(found, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RequestRecord":
        """The record that `to_json` wrote; a line that holds none is a ValueError which says why."""
        return cls.from_dict(parse(line))

    @classmethod
    def from_dict(cls, found: Any) -> "RequestRecord":
        """The record of an object; fields that a newer kit added are passed over, wrong ones are a ValueError."""
        rounds = found.get("rounds") if isinstance(found, dict) else None
        known = checked(cls, found if rounds is None else {**found, "rounds": _rounds(rounds)}, ("output_ids",))
        if rounds is None:
            raise ValueError("rounds is missing")
        return cls(**known | {name: one_line(known[name]) for name in NAMES if known.get(name)})


_ROUND = tuple(one.name for one in fields(RoundRecord))
_of_round = attrgetter(*_ROUND)


def _round_fields(one: RoundRecord) -> dict[str, Any]:
    found = dict(zip(_ROUND, _of_round(one), strict=True))
    if one.expected is None:
        del found["expected"]
    return found


def _rounds(found: Any) -> list[RoundRecord]:
    if not isinstance(found, list):
        raise ValueError(f"rounds must be a list, not {shown(found)}")
    if all_checked(RoundRecord, found, MAY_BE_UNKNOWN):
        return [RoundRecord(**one) for one in found]
    rounds = []
    for number, one in enumerate(found, 1):
        try:
            rounds.append(RoundRecord(**checked(RoundRecord, one, MAY_BE_UNKNOWN)))
        except ValueError as error:
            raise ValueError(f"round {number}: {error}") from error
    return rounds
