"""What one decoded request leaves behind: the lines of `requests.jsonl`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field, to_builtins

from specbench_kit.core.plain_text import one_line
from specbench_kit.core.typed_json import Count, Number, convert, decode

TimeKind = Literal["measured", "modelled"]
FinishReason = Literal["eos", "length", "error"]
UNLIMITED = 1 << 40
"""More tokens than any request has."""
EXPECTED_DIGITS = 3
"""Decimals of `RoundRecord.expected`: fewer than what a predictor's arithmetic leaves open."""
if TYPE_CHECKING:
    # Only files of other tools hold null in these fields. Metrics ask once per run whether a field
    # is known, and then compute with plain numbers; so the type checker sees plain numbers too.
    KnownCount: TypeAlias = int
    KnownSeconds: TypeAlias = float
    Token: TypeAlias = int
else:
    KnownCount = Count | None
    KnownSeconds = Number | None
    Token = Count | None


class RoundRecord(Struct):
    """One target verification of one request.

    The draft model produced `drafted` tokens, of which `submitted` were sent; the target accepted
    `accepted` of them, and `committed` tokens joined the output (accepted + 1 bonus token, less
    what the end of the output cuts off). Seconds are this request's share of the batch's phases, so
    that sums over requests are busy seconds; `prefill_s` is the draft model's prefill, the target's
    is part of the first round's `verify_s`. `end_s` is when the round's tokens were committed,
    since the request's arrival.

    Of the drafted tokens, `proactive` were drafted while the target verified. `aligned` is true if
    the next round continues from them, because they begin with the target's bonus token; `reused`
    counts the accepted tokens that the previous round had drafted in this way.

    A round of a pipeline lasts until the pipeline has to be refilled: `accepted` tokens were already in flight,
    `steps` counts how often all stages worked, and `commits_s` says when each token was committed, since the request's
    arrival.

    `deepest` is the largest depth of a submitted token below the root; None in records of other tools.

    For a tree, `parents` holds the parent of every submitted node and `path` the accepted nodes,
    both as positions among the submitted nodes from 1 up, where 0 is the token committed last. Both
    are empty for a chain.

    `padded` describes the request's row in a batch whose rounding depends on its shape; `Padding` gives the order.

    `expected` is how many submitted tokens the policy expected to be accepted, if it decides by probabilities; a line
    has the field only then.

    `sent_bytes` went to a server in drafts since the round before, and of such drafts the server dropped `stale_bytes`
    without verifying them; a line has these fields only where they are above 0.

    `drafter` names the drafter of the round's tokens if the method has several to choose from (`first-of`); a line has
    the field only then, and only if something was drafted.
    """

    drafted: KnownCount
    submitted: KnownCount
    accepted: Count
    committed: Count
    prefill_s: KnownSeconds
    draft_s: KnownSeconds
    policy_s: KnownSeconds
    link_s: KnownSeconds
    queue_s: KnownSeconds
    verify_s: KnownSeconds
    commit_s: KnownSeconds
    end_s: KnownSeconds
    proactive: Count = 0
    aligned: bool = False
    reused: Count = 0
    steps: Count = 0
    commits_s: list[Number] = field(default_factory=list)
    deepest: Count | None = None
    parents: list[Count] = field(default_factory=list)
    path: list[Count] = field(default_factory=list)
    padded: list[Count] = field(default_factory=list)
    expected: Number | None = None
    drafter: str = ""
    sent_bytes: Count = 0
    stale_bytes: Count = 0

    @property
    def first_s(self) -> float:
        """The time at which the round's first token was committed, since the request's arrival."""
        return self.commits_s[0] if self.commits_s else self.end_s


MAY_BE_UNKNOWN = (
    *(
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
    ),
)
"""The fields of a round that hardly any other tool records; they are null in records made of its
files.
"""


class RequestRecord(Struct):
    """One request from arrival to its last token; times are in seconds since its arrival.

    Only `finished_s` is on the run's clock, which continues where a resumed run had stopped.
    `repeat` counts from 0 if a run decodes the same request several times.

    If the draft model is behind a link, `colocated_s` is what `e2e_s` would be with the draft model
    beside the target, over the same rounds, and `colocated_draft_s` the part of it spent drafting.

    If times are derived, `ends_s` is what `e2e_s` would be at each end of their range, in the order
    in which `run.json` names the ends; a line has the field only then. It has `dialogue` only if
    the request is a turn of one.

    In a record made of another tool's file, None stands for what the tool does not record: each
    token of `output_ids`, whose length is known, and fields of the rounds.
    """

    request_id: str
    category: str
    prompt_ids: list[Count]
    output_ids: list[Token] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    error: str | None = None
    ttft_s: Number | None = None
    e2e_s: Number | None = None
    tpot_s: Number | None = None
    finished_s: Number | None = None
    time_kind: TimeKind = "measured"
    repeat: Count = 0
    rounds: list[RoundRecord] = field(default_factory=list)
    colocated_s: Number | None = None
    colocated_draft_s: Number | None = None
    ends_s: list[Number] = field(default_factory=list)
    dialogue: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """The identity of the record among those of one method in a run."""
        return self.request_id, self.repeat

    @property
    def has_token_ids(self) -> bool:
        """True if it is known which tokens the output consists of."""
        tokens: list[int | None] = [*self.output_ids]
        return None not in tokens

    def finish(self, output_ids: list[int], reason: FinishReason, now_s: float) -> None:
        """Set the output, and the times that follow from the rounds."""
        self.output_ids = output_ids
        self.finish_reason = reason
        self.finished_s = now_s
        self.ttft_s, self.e2e_s = self.rounds[0].first_s, self.rounds[-1].end_s
        if len(output_ids) > 1:
            self.tpot_s = (self.e2e_s - self.ttft_s) / (len(output_ids) - 1)

    def to_json(self) -> str:
        """Return the line of `requests.jsonl`, without its end; raise ValueError if a number is not
        finite.
        """
        fields = to_builtins(self)
        for name in ("ends_s", "dialogue"):
            if not fields[name]:
                del fields[name]
        for round_fields in fields["rounds"]:
            if round_fields["expected"] is None:
                del round_fields["expected"]
            for name in ("drafter", "sent_bytes", "stale_bytes"):
                if not round_fields[name]:
                    del round_fields[name]
        # Not msgspec's encoder, which would silently write null for a number that is not finite.
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RequestRecord":
        """Return the record of a line of `requests.jsonl`; raise ValueError if it is damaged,
        naming the field.

        Fields that a newer kit added are passed over.
        """
        record = decode(cls, line)
        if not record.rounds:
            decode(_HasRounds, line)
        return record._with_plain_names()

    @classmethod
    def from_document(cls, document: object) -> "RequestRecord":
        """Return the record of a parsed JSON object, checked as in `from_json`."""
        record = convert(cls, document)
        if not record.rounds:
            convert(_HasRounds, document)
        return record._with_plain_names()

    def _with_plain_names(self) -> "RequestRecord":
        """Make the fields that tables and terminals print safe to print, whoever wrote the file."""
        self.request_id, self.category = one_line(self.request_id), one_line(self.category)
        self.dialogue = one_line(self.dialogue)
        self.error = self.error and one_line(self.error)
        return self


Records: TypeAlias = Sequence[RequestRecord]


class _HasRounds(Struct):
    """A line that was cut short may lack rounds, which a new record need not name."""

    rounds: list[RoundRecord]
