"""One answer of a server, as its client saw it arrive: the lines of `answers.jsonl` in a run of
`skit ab`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from specbench_kit.core.typed_json import Count, Number

CountedBy = Literal[
    "token ids",
    "running usage",
    "logprobs",
    "tokenizer",
    "one per chunk",
    "usage at the end",
    "chunks",
]
"""How the tokens of an answer were counted. `one per chunk` means that the server states as many
tokens as there were chunks. By `usage at the end` the total is exact, and each burst's part in it
is estimated. By `chunks` nothing but the number of chunks is known.
"""

BY_MODEL = ("stop", "eos", "eos_token", "end_turn")
STOPPED = (*BY_MODEL, "stop_sequence")
LIMITS = ("length", "max_tokens", "model_length")
WHOLE = (*STOPPED, "tool_calls", "function_call", *LIMITS, "")
"""Reasons, in small letters, for which a whole answer ends; some servers name none. `BY_MODEL` are
those of a model that chose its end, `LIMITS` those of an answer that is as long as was allowed.
"""


class Burst(Struct, frozen=True, array_like=True):
    """Tokens that arrived together, and when: in seconds since the request was sent.

    There may be 0 of them: a server may send the text of a token in several parts, and only one of
    them counts.
    """

    at_s: Number
    tokens: Count


class DraftCounts(Struct, frozen=True):
    """The counts of speculation that a server reports for one answer; None stands for what it does
    not report.

    A round is one verification, which commits its accepted tokens and one more; the first token of
    an answer comes from the prompt's forward and belongs to no round. `accepted_first` counts the
    rounds that accepted their first drafted token.
    """

    rounds: Count | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    accepted_first: Count | None = None


class AnswerCall(Struct, frozen=True):
    """A call of a tool in an answer: its name, and its arguments as the text that arrived."""

    name: str
    arguments: str


class ThinkingPart(Struct, frozen=True):
    """The part of an answer in which a reasoning model thinks, before its reply.

    The reply begins with its first character that is no white space, `reply_s` after the request was sent, and
    everything from there on belongs to it. None stands for what is not known: `tokens` where only chunks are counted,
    characters where another tool did not record the text, and `reply_s` where it did not record the time. An answer
    that ended before its reply is `unfinished`.
    """

    tokens: Count | None = None
    characters: Count | None = None
    reply_characters: Count | None = None
    reply_s: Number | None = None
    unfinished: bool = False


class StreamedAnswer(Struct, frozen=True):
    """An answer from the moment its request was sent.

    `token_ids` are None where the server does not name them, `text` where another tool did not record it. `reply` is
    the text without thoughts and calls of tools; it is None where it is the whole text. `calls` are those that the
    server read as such. `thinking` is left out of answers without a thinking part.
    """

    text: str | None
    bursts: list[Burst]
    counted_by: CountedBy
    finish_reason: str = ""
    token_ids: list[Count] | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    drafts: DraftCounts | None = None
    reply: str | None = None
    calls: list[AnswerCall] = []
    thinking: ThinkingPart | UnsetType = UNSET

    @property
    def was_stopped(self) -> bool:
        """True if the model or a stop sequence ended the answer."""
        return self.finish_reason.lower() in STOPPED

    @property
    def was_cut(self) -> bool:
        """True if the limit of tokens ended the answer."""
        return self.finish_reason.lower() in LIMITS

    @property
    def tokens(self) -> int:
        """The number of output tokens."""
        return sum(burst.tokens for burst in self.bursts)

    @property
    def committed(self) -> int:
        """The tokens of the answer that its rounds committed: all but the first, where acceptance
        is not reported.

        Tokens of the last round after the answer's end were not sent, and do not count. Steps
        without a draft are not rounds at every server, so that rounds may have committed fewer
        tokens than were sent.
        """
        after_first = max(0, self.tokens - 1)
        drafts = self.drafts
        if drafts is None or drafts.rounds is None or drafts.accepted is None:
            return after_first
        return min(after_first, drafts.rounds + drafts.accepted)

    @property
    def ttft_s(self) -> float:
        """The time until the first part of the answer arrived."""
        return self.bursts[0].at_s

    @property
    def e2e_s(self) -> float:
        """The time until the last part of the answer arrived."""
        return self.bursts[-1].at_s

    @property
    def decode_s(self) -> float:
        """The time from the first part to the last."""
        return self.e2e_s - self.ttft_s

    @property
    def tpot_s(self) -> float | None:
        """The time per output token after the first; None for an answer of a single token."""
        return self.decode_s / (self.tokens - 1) if self.tokens > 1 else None


class AnswerKey(Struct, frozen=True):
    """The identity of an answer: the load, the server, the prompt, and how often the prompt was
    asked before.

    `dialogue_turn` counts the earlier turns of the prompt's dialogue.
    """

    load: str
    server: str
    request_id: str
    repeat: Count
    dialogue_turn: Count = 0

    @property
    def request(self) -> tuple[str, int, int]:
        """The identity of the request, which is the same for both servers: prompt, repeat and turn
        of the dialogue.
        """
        return self.request_id, self.repeat, self.dialogue_turn


class AnswerRecord(Struct, frozen=True):
    """One request of a run: where it belongs, when it was sent on the client's clock, and its
    answer or its error.

    `turn` counts the stretches of requests that a server answers before the other one gets the same requests.
    `attempts` is above 1 for a request that was sent again, for `retry_reasons`. `late_s` is how long after its arrival
    time it was sent.
    """

    key: AnswerKey
    turn: Count
    sent_s: Number
    answer: StreamedAnswer | None = None
    error: str | None = None
    attempts: Count = 1
    late_s: Number = 0.0
    retry_reasons: list[str] = []

    @property
    def ended_s(self) -> float:
        """The moment of the last token on the client's clock."""
        return self.sent_s + (self.answer.e2e_s if self.answer else 0.0)


class ServerDescription(Struct, frozen=True):
    """A server under test as `run.json` names it; an address never holds a key."""

    name: Annotated[str, Meta(description="name of the server in the comparison")]
    address: Annotated[str, Meta(description="URL of the server, without a key")]
    dialect: Annotated[str, Meta(description="API by which it is asked")]
    model: Annotated[
        str | None, Meta(description="model that it is asked for; null if it names none")
    ] = None
    context: Annotated[
        Count | None, Meta(description="tokens of its context; null if it does not say")
    ] = None
    version: Annotated[
        str | None, Meta(description="version of its software; null if it does not say")
    ] = None


class CounterChange(Struct, frozen=True):
    """How far a server's own counters of speculation moved during one turn; `fell` if one of them
    went down.
    """

    load: str
    server: str
    repeat: Count = 0
    turn: Count = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    fell: bool = False

    @property
    def key(self) -> tuple[str, str, int, int]:
        """The identity of the server's turn."""
        return self.load, self.server, self.repeat, self.turn


def divided(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole numbers that sum to `total`, in proportion to the weights; at least 1 each where
    possible.

    Where the weights are more than the total, the first and the last of them get 1 before any other
    does.
    """
    count = len(weights)
    least = (
        [1] * count if total >= count else [int(place in (0, count - 1)) for place in range(count)]
    )
    if total < sum(least):
        least = [1] * total + [0] * (count - total)
    spare = total - sum(least)
    weight_sum = sum(weights)
    ends = [0]
    so_far = 0
    for place, weight in enumerate(weights, 1):
        so_far += weight
        ends.append(round(spare * so_far / weight_sum) if weight_sum else spare * place // count)
    return [
        part + after - before for part, (before, after) in zip(least, pairwise(ends), strict=True)
    ]
