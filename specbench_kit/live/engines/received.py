"""A streamed answer as it was received: when what arrived, and how many tokens it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET
from msgspec.structs import replace

from specbench_kit.datasets.answers import end_of_thoughts
from specbench_kit.live.engines.answers import (
    AnswerCall,
    Burst,
    CountedBy,
    DraftCounts,
    StreamedAnswer,
    ThinkingPart,
    divided,
)
from specbench_kit.live.engines.base import StreamEvent
from specbench_kit.live.engines.thinking import (
    TextPart,
    end_of_thinking,
    thinking_part,
)

TOGETHER_S = 5e-4
"""Events that arrive within this time of each other are one burst: a server may send the tokens of
one verification one by one, and one read of the socket holds several events.
"""

TokenCounter = Callable[[str], int]
"""Returns the number of tokens of a text."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The new text of an event, the number of its new tokens if known, and when it arrived.

    The text begins with the model's thoughts.
    """

    at_s: float
    text: str
    tokens: int | None
    thoughts: str = ""


@dataclass
class ReceivedStream:
    """Collects the events of one answer; times are in seconds since the request was sent."""

    _arrivals: list[_Arrival] = field(default_factory=list)
    _reasoning: str = ""
    _reply: str = ""
    _other: str = ""
    _calls: dict[int, AnswerCall] = field(default_factory=dict)
    _ids: list[int] | None = None
    _named: int = 0
    """The tokens whose ids or log-probabilities have arrived."""
    _running_total: int = 0
    """The tokens that events have brought so far, where they say so."""
    _unseen: int = 0
    """Tokens that the server has counted, and of which nothing has arrived yet."""
    _total: int | None = None
    _counted_by: CountedBy = "chunks"
    _prompt_tokens: int | None = None
    _cached_tokens: int | None = None
    _drafts: DraftCounts | None = None
    _thought_tokens: int | None = None
    """The tokens of the thoughts, where the server counts them."""
    finish_reason: str = ""
    """Why the server says that the answer ended; empty if it does not say."""

    def add(self, event: StreamEvent, at_s: float) -> bool:
        """Add an event that arrived at a time, and return True if a part of the answer arrived with
        it.
        """
        is_whole = event.cumulative and event.text.startswith(self._reply)
        reply = event.text[len(self._reply) :] if is_whole else event.text
        text = f"{event.reasoning}{reply}{event.other}"
        brings = bool(text) or self._names_tokens(event)
        tokens, counted_by = self._new_tokens(event, brings)
        if brings:
            self._arrivals.append(
                _Arrival(
                    at_s,
                    text,
                    None if tokens is None else tokens + self._unseen,
                    event.reasoning,
                )
            )
            self._unseen = 0
            self._counted_by = counted_by
        else:
            # Counts alone are no arrival: such tokens belong to a text that is still held back, or
            # to the last one.
            self._unseen += tokens or 0
        self._reasoning += event.reasoning
        self._reply += reply
        self._other += event.other
        for part in event.calls:
            known = self._calls.get(part.position, AnswerCall("", ""))
            self._calls[part.position] = AnswerCall(
                known.name + part.name, known.arguments + part.arguments
            )
        if event.token_ids is not None:
            self._ids = (
                list(event.token_ids)
                if event.cumulative
                else [*(self._ids or ()), *event.token_ids]
            )
        # Some servers state 0 tokens beside a text: they do not count.
        self._total = event.total_tokens or self._total
        self.finish_reason = event.finish_reason or self.finish_reason
        self._prompt_tokens = (
            event.prompt_tokens if event.prompt_tokens is not None else self._prompt_tokens
        )
        self._cached_tokens = (
            event.cached_tokens if event.cached_tokens is not None else self._cached_tokens
        )
        self._drafts = event.drafts or self._drafts
        self._thought_tokens = event.reasoning_tokens or self._thought_tokens
        return brings

    def _names_tokens(self, event: StreamEvent) -> bool:
        """Return True if an event names a new token, by its id or by its log-probability."""
        known = len(self._ids or ()) if event.cumulative else 0
        return len(event.token_ids or ()) > known or bool(event.tokens)

    def _new_tokens(self, event: StreamEvent, brings: bool) -> tuple[int | None, CountedBy]:
        """Return how many tokens an event brought, and by what they were counted."""
        if event.tokens is not None:
            self._named += event.tokens
            # llama.cpp names only the last of the tokens that make one character; after the
            # answer's end, it counts those that it verified and did not send.
            stated = (event.total_tokens or 0) if brings and event.counted_by == "token ids" else 0
            new = max(self._running_total, self._named, stated) - self._running_total
            self._running_total += new
            return new, event.counted_by
        # The last event may state the total of a stream whose other events stated nothing: that is
        # no running count.
        if (
            event.total_tokens is not None
            and (self._running_total or not self._arrivals)
            and event.total_tokens
        ):
            new = max(0, event.total_tokens - self._running_total)
            self._running_total = event.total_tokens
            return new, event.counted_by if event.cumulative else "running usage"
        return None, "chunks"

    @property
    def reply(self) -> str:
        """The answer as the next turn of a dialogue repeats it: without the model's reasoning and
        calls of tools.
        """
        return self._reply.strip()

    @property
    def is_empty(self) -> bool:
        """Return True if no part of an answer arrived, whatever the server counts."""
        return not self._arrivals

    @property
    def counted_tokens(self) -> int:
        """The number of tokens that the server counts, whether they arrived or not."""
        return max(self._total or 0, self._running_total)

    def answer(self, count_tokens: TokenCounter | None = None) -> StreamedAnswer:
        """Return the answer; `count_tokens` is used where the server does not say how many tokens
        an event brought.
        """
        sizes, counted_by = self._sizes(count_tokens)
        text = f"{self._reasoning}{self._reply}{self._other}"
        parts = [
            TextPart(
                arrival.at_s, arrival.thoughts, arrival.text.removeprefix(arrival.thoughts), size
            )
            for arrival, size in zip(self._arrivals, sizes, strict=True)
        ]
        end = end_of_thinking(parts)
        reply = self._reply
        if not self._reasoning.strip() and (tags_end := end_of_thoughts(reply)) is not None:
            reply = reply[tags_end:]
        return StreamedAnswer(
            text=text,
            bursts=self._bursts(sizes),
            counted_by=counted_by,
            finish_reason=self.finish_reason,
            token_ids=self._ids if counted_by == "token ids" else None,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            drafts=self._drafts,
            reply=None if reply == text else reply,
            calls=[self._calls[position] for position in sorted(self._calls)],
            thinking=UNSET if end is None else self._thinking(parts, end, counted_by),
        )

    def _thinking(self, parts: Sequence[TextPart], end: int, counted_by: CountedBy) -> ThinkingPart:
        """Return the thinking part, by the server's own count of its tokens where there is one."""
        thinking = thinking_part(parts, end, counts_tokens=counted_by != "chunks")
        stated = self._thought_tokens
        total = sum(part.tokens for part in parts)
        if stated is None or thinking.tokens is None or stated > total:
            return thinking
        return replace(thinking, tokens=stated)

    def _sizes(self, count_tokens: TokenCounter | None) -> tuple[Sequence[int], CountedBy]:
        """Return the tokens of each arrival, and by what they were counted."""
        total = self._total
        stated = [arrival.tokens for arrival in self._arrivals if arrival.tokens is not None]
        if len(stated) == len(self._arrivals) and any(stated):
            sizes = [*stated[:-1], stated[-1] + self._unseen]
            if self._counted_by == "token ids" and sum(sizes) > len(self._ids or ()):
                return sizes, "running usage"
            # Ids and running counts are the server's own; it may not give the log-probabilities of
            # all tokens.
            if self._counted_by != "logprobs" or total in (None, sum(sizes)):
                return sizes, self._counted_by
            return divided(total or 0, sizes), "usage at the end"
        by_text = self._sizes_by_text(count_tokens) if count_tokens is not None else None
        if by_text is not None and total in (None, sum(by_text)) and any(by_text):
            return by_text, "tokenizer"
        if total is None:
            return [1] * len(self._arrivals), "chunks"
        if total == len(self._arrivals):
            return [1] * total, "one per chunk"
        return divided(
            total, by_text or [len(arrival.text) for arrival in self._arrivals]
        ), "usage at the end"

    def _sizes_by_text(self, count_tokens: TokenCounter) -> list[int]:
        """Return the tokens that each event added to the tokenized text."""
        ends = [0]
        text = ""
        for arrival in self._arrivals:
            text += arrival.text
            # A piece of text may join with the one before it to fewer tokens; the count never goes
            # back.
            ends.append(max(ends[-1], count_tokens(text)))
        return [after - before for before, after in pairwise(ends)]

    def _bursts(self, sizes: Sequence[int]) -> list[Burst]:
        """Return the arrivals with their tokens; one that completes no token is one too, as its
        text has arrived.
        """
        bursts: list[Burst] = []
        for arrival, size in zip(self._arrivals, sizes, strict=True):
            if bursts and arrival.at_s - bursts[-1].at_s < TOGETHER_S:
                bursts[-1] = Burst(bursts[-1].at_s, bursts[-1].tokens + size)
            else:
                bursts.append(Burst(arrival.at_s, size))
        return bursts
