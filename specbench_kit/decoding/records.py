"""What one decoded request leaves behind: the lines of `requests.jsonl`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field, to_builtins

from specbench_kit.core.plain_text import one_line
from specbench_kit.core.typed_json import Count, Number, convert, decode

TimeKind = Literal["measured", "modelled"]
FinishReason = Literal["eos", "length", "error"]
Outcome = Literal["valid", "cut", "invalid"]
"""What a grammar says of an output: it follows the grammar to its end, it was cut before the end, or
it does not follow it.
"""
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

    Seconds are this request's share of the batch's phases, so that sums over requests are busy
    seconds. What another tool does not record is null.
    """

    drafted: Annotated[
        KnownCount, Meta(description="tokens that the drafter produced; null if that is not known")
    ]
    submitted: Annotated[
        KnownCount,
        Meta(description="drafted tokens that were sent to be verified; null if that is not known"),
    ]
    accepted: Annotated[
        Count,
        Meta(
            description="submitted tokens that the target accepted; in a pipeline, tokens that were already "
            "in flight"
        ),
    ]
    committed: Annotated[
        Count,
        Meta(
            description="tokens that joined the output: accepted + 1 bonus token, less what the end of the "
            "output cuts off"
        ),
    ]
    prefill_s: Annotated[
        KnownSeconds,
        Meta(
            description="seconds of the draft model's prefill; the target's is part of the first round's "
            "'verify_s'; null if that is not known"
        ),
    ]
    draft_s: Annotated[
        KnownSeconds, Meta(description="seconds of drafting; null if that is not known")
    ]
    policy_s: Annotated[
        KnownSeconds,
        Meta(description="seconds of the policy's decisions; null if that is not known"),
    ]
    link_s: Annotated[
        KnownSeconds, Meta(description="seconds on the link; null if that is not known")
    ]
    queue_s: Annotated[
        KnownSeconds,
        Meta(description="seconds of waiting for the verifier; null if that is not known"),
    ]
    verify_s: Annotated[
        KnownSeconds, Meta(description="seconds of the verification; null if that is not known")
    ]
    commit_s: Annotated[
        KnownSeconds,
        Meta(description="seconds of adding tokens to the output; null if that is not known"),
    ]
    end_s: Annotated[
        KnownSeconds,
        Meta(
            description="seconds from the request's arrival to the commit of the round's tokens; null if that "
            "is not known"
        ),
    ]
    proactive: Annotated[
        Count, Meta(description="drafted tokens that were drafted while the target verified")
    ] = 0
    aligned: Annotated[
        bool,
        Meta(
            description="whether the next round continues from these, because they begin with the target's "
            "bonus token"
        ),
    ] = False
    reused: Annotated[
        Count, Meta(description="accepted tokens that the previous round had drafted in this way")
    ] = 0
    steps: Annotated[
        Count,
        Meta(
            description="times that all stages of a pipeline worked until it has to be refilled; 0 without a "
            "pipeline"
        ),
    ] = 0
    commits_s: Annotated[
        list[Number],
        Meta(
            description="seconds from the request's arrival to the commit of each token; empty without a "
            "pipeline"
        ),
    ] = field(default_factory=list)
    deepest: Annotated[
        Count | None,
        Meta(
            description="largest depth of a submitted token below the root; null in records of other tools"
        ),
    ] = None
    parents: Annotated[
        list[Count],
        Meta(
            description="parent of every submitted node of a tree, as a position among these from 1 up, where "
            "0 is the token committed last; empty for a chain"
        ),
    ] = field(default_factory=list)
    path: Annotated[
        list[Count],
        Meta(description="accepted nodes of a tree, as such positions; empty for a chain"),
    ] = field(default_factory=list)
    padded: Annotated[
        list[Count],
        Meta(
            description="the request's row in a batch whose rounding depends on its shape: rows, row, width "
            "in new tokens, first column with logits, and keys; empty for others"
        ),
    ] = field(default_factory=list)
    expected: Annotated[
        Number | None,
        Meta(
            description="submitted tokens that the policy expected to be accepted; null if it does not decide "
            "by probabilities"
        ),
    ] = None
    drafter: Annotated[
        str,
        Meta(
            description="drafter of the round's tokens if the method has several to choose from and something "
            "was drafted; empty otherwise"
        ),
    ] = ""
    sent_bytes: Annotated[
        Count, Meta(description="bytes of drafts that went to a server since the round before")
    ] = 0
    stale_bytes: Annotated[
        Count,
        Meta(description="bytes of such drafts that the server dropped without verifying them"),
    ] = 0
    forbidden: Annotated[
        Count,
        Meta(description="submitted tokens that the request's grammar forbids; 0 without one"),
    ] = 0
    forced: Annotated[
        Count,
        Meta(
            description="tokens that joined the output behind 'committed' without being verified, since the "
            "grammar allows no other"
        ),
    ] = 0
    forced_submitted: Annotated[
        Count,
        Meta(description="submitted tokens that are the only ones that the grammar allows there"),
    ] = 0
    forced_accepted: Annotated[Count, Meta(description="accepted tokens among these")] = 0

    @property
    def first_s(self) -> float:
        """The time at which the round's first token was committed, since the request's arrival."""
        return self.commits_s[0] if self.commits_s else self.end_s


LEFT_OUT_IF_EMPTY = (
    "drafter",
    "sent_bytes",
    "stale_bytes",
    "forbidden",
    "forced",
    "forced_submitted",
    "forced_accepted",
)
"""The fields of a round that most rounds do not need, which their lines leave out."""
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

    In a record made of another tool's file, null stands for what the tool does not record.
    """

    request_id: Annotated[str, Meta(description="id of the request")]
    category: Annotated[str, Meta(description="category of its prompt")]
    prompt_ids: Annotated[list[Count], Meta(description="ids of the prompt's tokens")]
    output_ids: Annotated[
        list[Token],
        Meta(description="ids of the output's tokens, each null if only their number is known"),
    ] = field(default_factory=list)
    text: Annotated[str, Meta(description="text of the output")] = ""
    finish_reason: Annotated[
        FinishReason,
        Meta(description="what ended the output: 'eos', 'length' for the token limit, or 'error'"),
    ] = "length"
    error: Annotated[str | None, Meta(description="message of the error; null without one")] = None
    ttft_s: Annotated[
        Number | None, Meta(description="seconds to the first token; null if that is not known")
    ] = None
    e2e_s: Annotated[
        Number | None, Meta(description="seconds to the last token; null if that is not known")
    ] = None
    tpot_s: Annotated[
        Number | None,
        Meta(
            description="seconds per output token after the first; null for a single token, and if that is "
            "not known"
        ),
    ] = None
    finished_s: Annotated[
        Number | None,
        Meta(
            description="when the request ended, in seconds on the run's clock, which continues where a "
            "resumed run had stopped; null if that is not known"
        ),
    ] = None
    time_kind: Annotated[TimeKind, Meta(description="whether times were measured or modelled")] = (
        "measured"
    )
    repeat: Annotated[Count, Meta(description="number of the request's repetition, from 0")] = 0
    rounds: Annotated[list[RoundRecord], Meta(description="rounds of the request")] = field(
        default_factory=list
    )
    colocated_s: Annotated[
        Number | None,
        Meta(
            description="what 'e2e_s' would be with the draft model beside the target, over the same rounds; "
            "null unless it is behind a link"
        ),
    ] = None
    colocated_draft_s: Annotated[
        Number | None,
        Meta(
            description="part of these seconds spent drafting; null unless the draft model is behind a link"
        ),
    ] = None
    ends_s: Annotated[
        list[Number],
        Meta(
            description="what 'e2e_s' would be at each end of the range of derived times, in the order of the "
            "ends in run.json; empty without a range"
        ),
    ] = field(default_factory=list)
    dialogue: Annotated[
        str, Meta(description="id of the dialogue that the request is a turn of; empty otherwise")
    ] = ""
    grammar: Annotated[
        Outcome | None,
        Meta(
            description="whether the output follows the request's grammar to its end: 'valid', 'cut' by the "
            "token limit before the end, or 'invalid'; null without a grammar"
        ),
    ] = None
    forced_first: Annotated[
        Count,
        Meta(
            description="tokens that the output begins with, which joined it before the first round without being "
            "verified, since the grammar allows no others"
        ),
    ] = 0

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
        for name in ("ends_s", "dialogue", "grammar", "forced_first"):
            if not fields[name]:
                del fields[name]
        for round_fields in fields["rounds"]:
            if round_fields["expected"] is None:
                del round_fields["expected"]
            for name in LEFT_OUT_IF_EMPTY:
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
