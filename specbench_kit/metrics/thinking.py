"""Acceptance in the thoughts of a reasoning model and in the reply behind them, and how long each
part takes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from specbench_kit.core.typed_json import Count, Number
from specbench_kit.datasets.answers import end_of_thoughts
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.statistics import interval_of_ratio, ratio_of_sums, units_of

Decode = Callable[[list[int]], str]
AnswerPart = Literal["thoughts", "reply"]
PARTS: tuple[AnswerPart, ...] = ("thoughts", "reply")


class AnswerPartAcceptance(Struct, frozen=True):
    """The thoughts, or the replies, of all answers that begin with thoughts."""

    part: Annotated[AnswerPart, Meta(description="part of the answers")]
    answers: Annotated[Count, Meta(description="answers that have the part")]
    tokens: Annotated[Number, Meta(description="mean tokens of the part")]
    seconds: Annotated[
        Number | None,
        Meta(
            description="mean seconds of the part: of thoughts from the first token to the first of the reply, of "
            "a reply from there to the last token; null if times are not known"
        ),
    ]
    rounds: Annotated[Count, Meta(description="verifications whose first token lies in the part")]
    acceptance_length: Annotated[
        Number | None,
        Meta(
            description="committed tokens per such verification, the bonus token included; null without any"
        ),
    ]
    interval: Annotated[
        list[Number] | None,
        Meta(description="95% interval of the length over prompts; null for too few"),
    ]
    acceptance_rate: Annotated[
        Number | None,
        Meta(
            description="share of the submitted tokens that was accepted; null if none was submitted"
        ),
    ]


class ThinkingSummary(Struct, frozen=True):
    """A run's answers that begin with thoughts."""

    answers: Annotated[Count, Meta(description="answers that begin with thoughts")]
    unfinished: Annotated[Count, Meta(description="of these, answers that end before their reply")]
    parts: Annotated[list[AnswerPartAcceptance], Meta(description="thoughts, and replies")]


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer, the place of its reply's first token, and the place of each round's first token."""

    record: RequestRecord
    reply: int
    places: Sequence[int]

    @property
    def reply_s(self) -> float | None:
        """The time of the reply's first token; None without a reply, or if it is not known."""
        if self.reply >= len(self.record.output_ids):
            return None
        # A token that the grammar forces before the first round is sent with that round's tokens.
        last = max((place for place in self.places if place <= self.reply), default=self.places[0])
        return self.record.rounds[self.places.index(last)].end_s

    def rounds(self, part: AnswerPart) -> list[RoundRecord]:
        """Return the rounds whose first token lies in a part."""
        return [
            each
            for place, each in zip(self.places, self.record.rounds, strict=True)
            if (place < self.reply) == (part == "thoughts")
        ]

    def tokens(self, part: AnswerPart) -> int:
        return self.reply if part == "thoughts" else len(self.record.output_ids) - self.reply

    def seconds(self, part: AnswerPart) -> float | None:
        """Return how long a part takes; None where its end or its beginning is not known."""
        record, reply_s = self.record, self.reply_s
        if part == "reply":
            bounds = (reply_s, record.e2e_s)
        else:
            bounds = (record.ttft_s, record.e2e_s if reply_s is None else reply_s)
        first_s, last_s = bounds
        return None if first_s is None or last_s is None else last_s - first_s


def summarise_thinking(records: Sequence[RequestRecord], decode: Decode) -> ThinkingSummary | None:
    """Return the acceptance in both parts of the answers that begin with thoughts; None if none
    does.

    A round belongs to the part in which its first token lies.
    """
    answers = list(_answers(records, decode))
    if not answers:
        return None
    units = units_of(records)
    return ThinkingSummary(
        answers=len(answers),
        unfinished=sum(not answer.tokens("reply") for answer in answers),
        parts=[
            _acceptance(part, own, units)
            for part in PARTS
            if (own := [answer for answer in answers if answer.tokens(part)])
        ],
    )


def _answers(records: Sequence[RequestRecord], decode: Decode) -> Iterator[_Answer]:
    for record in records:
        is_whole = record.finish_reason != "error" and record.rounds and record.has_token_ids
        end = end_of_thoughts(record.text) if is_whole else None
        if end is None:
            continue
        joined = (each.committed + each.forced for each in record.rounds)
        places = list(accumulate(joined, initial=record.forced_first))[:-1]
        yield _Answer(record, _place_of(record, end, decode), places)


def _place_of(record: RequestRecord, character: int, decode: Decode) -> int:
    """Return the place of the token with a character of the answer's text; behind all tokens for a
    character behind the text.
    """

    def length(tokens: int) -> int:
        # Half a character is a mark of its own until the next token completes it.
        return len(decode(record.output_ids[:tokens]).rstrip("\ufffd"))

    size = len(record.output_ids)
    if character >= len(record.text):
        return size
    return bisect_left(range(size), character + 1, key=length) - 1


def _acceptance(
    part: AnswerPart, answers: Sequence[_Answer], units: dict[str, int]
) -> AnswerPartAcceptance:
    rounds = [(units[answer.record.request_id], answer.rounds(part)) for answer in answers]
    every = [each for _, own in rounds for each in own]
    numbers, index = np.unique([unit for unit, own in rounds if own], return_inverse=True)
    of_unit, committed = (
        np.bincount(index, weights=weights, minlength=len(numbers))
        for weights in (
            [float(len(own)) for _, own in rounds if own],
            [float(sum(each.committed for each in own)) for _, own in rounds if own],
        )
    )
    times = [answer.seconds(part) for answer in answers]
    known = [time for time in times if time is not None]
    return AnswerPartAcceptance(
        part=part,
        answers=len(answers),
        tokens=float(np.mean([answer.tokens(part) for answer in answers])),
        seconds=float(np.mean(known)) if len(known) == len(times) else None,
        rounds=len(every),
        acceptance_length=ratio_of_sums(float(committed.sum()), float(of_unit.sum())),
        interval=interval_of_ratio(committed, of_unit) if every else None,
        acceptance_rate=ratio_of_sums(
            float(sum(each.accepted for each in every)),
            float(sum(each.submitted or 0 for each in every)),
        ),
    )
