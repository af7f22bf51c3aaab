"""The events of one stream, and how many tokens each of them brought.

Also here: counters of speculation that servers give to Prometheus, read before and after a load.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from specbench_kit.live.streams.base import StreamEvent
from specbench_kit.metrics.ab.answers import Burst, CountedBy, DraftCounts, StreamedAnswer

TOGETHER_S = 5e-4
"""Events that arrive within this time of each other are one burst: a server may send the tokens of one verification
one by one, and one read of the socket holds several events."""

TokenCounter = Callable[[str], int]
"""Returns the number of tokens of a text."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The new text of an event, the number of its new tokens if known, and when it arrived."""

    at_s: float
    text: str
    tokens: int | None


@dataclass
class ReceivedStream:
    """Collects the events of one answer; times are in seconds since the request was sent."""

    _arrivals: list[_Arrival] = field(default_factory=list)
    _text: str = ""
    _reply: str = ""
    _ids: list[int] | None = None
    _running_total: int = 0
    """The tokens that events have brought so far, where they say so."""
    _total: int | None = None
    _counted_by: CountedBy = "chunks"
    _prompt_tokens: int | None = None
    _cached_tokens: int | None = None
    _drafts: DraftCounts | None = None
    finish_reason: str = ""
    """Why the server says that the answer ended; empty if it does not say."""

    def add(self, event: StreamEvent, at_s: float) -> None:
        """Add an event that arrived at a time."""
        is_whole = event.cumulative and event.text.startswith(self._text)
        text = event.text[len(self._text) :] if is_whole else event.text
        tokens, counted_by = self._new_tokens(event)
        if text or tokens:
            self._arrivals.append(_Arrival(at_s, text, tokens))
            self._counted_by = counted_by
        self._text += text
        self._reply += text.removeprefix(event.reasoning)
        if event.token_ids is not None:
            self._ids = list(event.token_ids) if event.cumulative else [*(self._ids or ()), *event.token_ids]
        # Some servers state 0 tokens beside a text: they do not count.
        self._total = event.total_tokens or self._total
        self.finish_reason = event.finish_reason or self.finish_reason
        self._prompt_tokens = event.prompt_tokens if event.prompt_tokens is not None else self._prompt_tokens
        self._cached_tokens = event.cached_tokens if event.cached_tokens is not None else self._cached_tokens
        self._drafts = event.drafts or self._drafts

    def _new_tokens(self, event: StreamEvent) -> tuple[int | None, CountedBy]:
        """Return how many tokens an event brought, and by what they were counted."""
        if event.tokens is not None:
            self._running_total += event.tokens
            return event.tokens, event.counted_by
        # The last event may state the total of a stream whose other events stated nothing: that is no running count.
        if event.total_tokens is not None and (self._running_total or not self._arrivals) and event.total_tokens:
            new = event.total_tokens - self._running_total
            self._running_total = event.total_tokens
            return max(0, new), event.counted_by if event.cumulative else "running usage"
        return None, "chunks"

    @property
    def reply(self) -> str:
        """The answer as the next turn of a dialogue repeats it: without the model's reasoning."""
        return self._reply.strip()

    @property
    def is_empty(self) -> bool:
        """Return True if neither text nor the name of a token arrived, whatever the server counts."""
        return not (self._text or self._ids)

    def answer(self, count_tokens: TokenCounter | None = None) -> StreamedAnswer:
        """Return the answer; `count_tokens` is used where the server does not say how many tokens an event brought."""
        sizes: Sequence[int]
        if all(arrival.tokens is not None for arrival in self._arrivals):
            sizes = [arrival.tokens or 0 for arrival in self._arrivals]
            counted_by = self._counted_by
        elif count_tokens is not None:
            sizes = self._sizes_by_text(count_tokens)
            counted_by = "tokenizer"
        elif self._total == len(self._arrivals):
            sizes = [1] * len(self._arrivals)
            counted_by = "one per chunk"
        elif self._total is not None and self._total > len(self._arrivals):
            lengths = [max(1, len(arrival.text)) for arrival in self._arrivals]
            sizes = divided(self._total, lengths)
            counted_by = "usage at the end"
        elif self._total is not None:
            sizes = divided(self._total, [1] * len(self._arrivals))
            counted_by = "usage at the end"
        else:
            sizes = []
            counted_by = "chunks"
        if not any(sizes):
            sizes = [1] * len(self._arrivals)
            counted_by = "chunks"
        return StreamedAnswer(
            text=self._text,
            bursts=self._bursts(sizes),
            counted_by=counted_by,
            finish_reason=self.finish_reason,
            token_ids=self._ids if counted_by == "token ids" else None,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            drafts=self._drafts,
        )

    def _sizes_by_text(self, count_tokens: TokenCounter) -> list[int]:
        """Return the tokens that each event added to the tokenized text."""
        ends = [0]
        text = ""
        for arrival in self._arrivals:
            text += arrival.text
            # A piece of text may join with the one before it to fewer tokens; the count never goes back.
            ends.append(max(ends[-1], count_tokens(text)))
        return [after - before for before, after in pairwise(ends)]

    def _bursts(self, sizes: Sequence[int]) -> list[Burst]:
        bursts: list[Burst] = []
        for arrival, size in zip(self._arrivals, sizes, strict=True):
            if not size:
                continue
            if bursts and arrival.at_s - bursts[-1].at_s < TOGETHER_S:
                bursts[-1] = Burst(bursts[-1].at_s, bursts[-1].tokens + size)
            else:
                bursts.append(Burst(arrival.at_s, size))
        return bursts


def divided(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole numbers that sum to `total`, in proportion to the weights; at least 1 each where possible."""
    if total < len(weights):
        return [1] * total + [0] * (len(weights) - total)
    spare = total - len(weights)
    weight_sum = sum(weights)
    ends = [0]
    so_far = 0
    for weight in weights:
        so_far += weight
        ends.append(round(spare * so_far / weight_sum))
    return [1 + after - before for before, after in pairwise(ends)]


SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)", re.MULTILINE)
FIRST = 'position="0"'
"""The label of the first drafted token in counts of accepted tokens by their position."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "rounds": (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts",
        "llamacpp:spec_decode_num_drafts_total",
    ),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "tgi_request_skipped_tokens_sum",
    ),
    "accepted_first": (
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    ),
}
"""The names of each count, by server and version; the first one that a server has counts."""


def read_counters(text: str | None) -> dict[str, float]:
    """Return the counts of speculation in a text of Prometheus, summed over labels; empty if there are none."""
    sums: dict[str, float] = {}
    for sample in SAMPLE.finditer(text or ""):
        if "per_pos" in sample["name"] and FIRST not in (sample["labels"] or ""):
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        if isfinite(value):
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + value
    values: dict[str, float] = {}
    for count, names in COUNTERS.items():
        values |= next(({count: sums[name]} for name in names if name in sums), {})
    return values


def have_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return True if a counter is lower than before, as after a server was started again."""
    return any(after[count] < before[count] for count in after if count in before)


def change(before: Mapping[str, float], after: Mapping[str, float]) -> DraftCounts | None:
    """Return how far the counters moved; None if nothing was drafted, or if one of them fell."""
    moved = {count: round(after[count] - before[count]) for count in after if count in before}
    if have_fallen(before, after) or not (moved.get("drafted") or moved.get("accepted")):
        return None
    return DraftCounts(**moved)
