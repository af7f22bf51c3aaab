"""The thinking parts of one server's answers and the replies after them: lengths, times and
rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from specbench_kit.live.engines.answers import AnswerRecord, StreamedAnswer, ThinkingPart
from specbench_kit.metrics.latency import distribution
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.metrics.vocabulary import DistributionValues
from specbench_kit.studies.ab.summary import ThinkingFigures

LengthUnit = Literal["tokens", "characters"]


@dataclass(frozen=True, slots=True)
class _Thinking:
    """An answer, its thinking part, and the lengths of both parts; None for what is not known."""

    answer: StreamedAnswer
    part: ThinkingPart
    length: int | None
    reply_length: int | None

    @classmethod
    def of(cls, answer: StreamedAnswer, part: ThinkingPart, unit: LengthUnit) -> "_Thinking":
        """Return the lengths of an answer's parts in a unit."""
        if unit == "characters":
            return cls(answer, part, part.characters, part.reply_characters)
        return cls(
            answer,
            part,
            part.tokens,
            None if part.tokens is None else answer.tokens - part.tokens,
        )

    @property
    def thinking_s(self) -> float | None:
        """The time from the first token to the first one of the reply, or to the end without a
        reply.
        """
        if self.part.unfinished:
            return self.answer.decode_s
        return None if self.part.reply_s is None else self.part.reply_s - self.answer.ttft_s

    @property
    def reply_s(self) -> float | None:
        """The time from the first token of the reply to the last; None without its beginning."""
        return None if self.part.reply_s is None else self.answer.e2e_s - self.part.reply_s


def reply_start_s(answer: StreamedAnswer) -> float | None:
    """Return the time to the first token of the reply; None for an answer without thoughts."""
    return None if answer.thinking is UNSET else answer.thinking.reply_s


def length_unit(records: Sequence[AnswerRecord]) -> LengthUnit:
    """Return what the lengths of both servers' thinking parts are counted in: characters where the
    tokens of one are not known.
    """
    parts = [record.answer.thinking for record in records if record.answer is not None]
    return (
        "characters"
        if any(part is not UNSET and part.tokens is None for part in parts)
        else "tokens"
    )


def thinking_figures(
    answers: Sequence[StreamedAnswer], unit: LengthUnit
) -> ThinkingFigures | UnsetType:
    """Return the figures over the answers with a thinking part; UNSET if there are none."""
    rows = [
        _Thinking.of(answer, part, unit)
        for answer in answers
        if (part := answer.thinking) is not UNSET
    ]
    if not rows:
        return UNSET
    timed = [
        # The first token of the reply ends the last gap of the thinking part, where there is one.
        (row.length - row.part.unfinished, row.thinking_s)
        for row in rows
        if row.length is not None and row.thinking_s is not None
    ]
    replies = [
        (row.reply_length - 1, row.reply_s)
        for row in rows
        if row.reply_length and row.reply_s is not None
    ]
    starts_s = [row.part.reply_s for row in rows if row.part.reply_s is not None]
    return ThinkingFigures(
        answers=len(rows),
        unfinished=sum(row.part.unfinished for row in rows),
        unit=unit,
        thinking_length=_mean([row.length for row in rows]),
        reply_length=_mean([row.reply_length for row in rows]),
        reply=DistributionValues(**distribution(starts_s)),
        thinking_s=_mean([row.thinking_s for row in rows]),
        reply_s=_mean([row.reply_s for row in rows]),
        thinking_rate=_rate(timed),
        reply_rate=_rate(replies),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _rate(parts: Sequence[tuple[int, float]]) -> float | None:
    """Return the length per second of parts together; None where no time has passed."""
    return ratio_of_sums(sum(length for length, _ in parts), sum(seconds for _, seconds in parts))
