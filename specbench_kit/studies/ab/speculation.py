"""Acceptance of a server under one load, from what its answers report or from its counters, and of
two servers.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from specbench_kit.live.engines.answers import AnswerRecord, CounterChange, DraftCounts
from specbench_kit.metrics.statistics import Array, Ratio, ratio_of_sums
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.studies.ab.summary import Speculation

MANY_DRAFTED = 200
"""Drafted tokens, or rounds, from which a flawless record is no chance: 0.98^200 is below 2%."""
FEWEST_LOADS = 3
"""Loads at which an acceptance rate does not stay the same by chance."""
CHANCE_OF_CONSTANCY = 0.01
"""The chance below which rates at several loads are called too much alike."""


class TurnRounds(NamedTuple):
    """The rounds of one turn, or of one answer in it, and the tokens that they committed."""

    turn: int
    tokens: int
    rounds: int


def rounds_of_answers(records: Sequence[AnswerRecord]) -> list[TurnRounds]:
    """Return the rounds of each answer that reports them; nothing for a server that never
    drafts.
    """
    answers = [(record.turn, record.answer) for record in records if record.answer is not None]
    reported = [
        (turn, answer, answer.drafts) for turn, answer in answers if answer.drafts is not None
    ]
    # Answers in which nothing was drafted count as rounds of one token each, unless the server
    # never drafts.
    if not any(drafts.drafted != 0 for _, _, drafts in reported):
        return []
    return [
        TurnRounds(turn, answer.committed, drafts.rounds)
        for turn, answer, drafts in reported
        if drafts.rounds is not None
    ]


def rounds_of_counters(changes: Sequence[CounterChange]) -> list[TurnRounds]:
    """Return the rounds of each turn by a server's counters; a round commits one token besides the
    accepted ones.
    """
    return [
        TurnRounds(change.turn, change.counts.rounds + change.counts.accepted, change.counts.rounds)
        for change in changes
        if not change.fell
        and change.counts.rounds is not None
        and change.counts.accepted is not None
    ]


def acceptance_ratio(
    first: Sequence[TurnRounds], second: Sequence[TurnRounds], rows: int
) -> Ratio | None:
    """Return how many times longer the second server's acceptance length is, over turns that both
    have rounds in.
    """
    both = {entry.turn for entry in first} & {entry.turn for entry in second}
    if not both:
        return None

    def sums(side: Sequence[TurnRounds], name: Literal["tokens", "rounds"]) -> Array:
        values = [getattr(entry, name) if entry.turn in both else 0 for entry in side]
        return np.bincount([entry.turn for entry in side], weights=values, minlength=rows).astype(
            np.float64
        )

    return Ratio.of(
        [sums(second, "tokens"), sums(first, "rounds")],
        [sums(first, "tokens"), sums(second, "rounds")],
    )


def speculation(
    records: Sequence[AnswerRecord], changes: Sequence[CounterChange]
) -> Speculation | None:
    """Return acceptance by what the answers report, or by the server's counters; None for a server
    without any.
    """
    if rounds := rounds_of_answers(records):
        drafts = [
            record.answer.drafts for record in records if record.answer and record.answer.drafts
        ]
        counts = _total(drafts)
        return _described("each answer", rounds, counts, doubts_of(counts))
    if not changes:
        return None
    counts = _total([change.counts for change in changes if not change.fell])
    tokens = _sent_tokens(records)
    doubts = doubts_of(counts, fell=any(change.fell for change in changes), sent_tokens=tokens)
    sent = ratio_of_sums(tokens, counts.rounds or 0) if tokens is not None else None
    return _described("counters", rounds_of_counters(changes), counts, doubts, sent)


def _sent_tokens(records: Sequence[AnswerRecord]) -> int | None:
    """Return the tokens that rounds can have committed: all but the first of each answer.

    None if a request failed or was sent again: counters count its rounds too, while no answer holds
    their tokens.
    """
    answers = [
        record.answer for record in records if record.answer is not None and record.attempts == 1
    ]
    return sum(answer.tokens - 1 for answer in answers) if len(answers) == len(records) else None


def _described(
    source: Literal["each answer", "counters"],
    rounds: Sequence[TurnRounds],
    counts: DraftCounts,
    doubts: list[str],
    sent: float | None = None,
) -> Speculation:
    turns, tokens, number = zip(*rounds, strict=True) if rounds else ((), (), ())
    ratio = (
        Ratio.of([np.bincount(turns, weights=tokens)], [np.bincount(turns, weights=number)])
        if rounds
        else None
    )
    drafted = counts.drafted
    accepted = counts.accepted
    return Speculation(
        source,
        acceptance_length=ratio_of_sums(sum(tokens), sum(number)),
        acceptance_rate=accepted / drafted if drafted and accepted is not None else None,
        rounds=counts.rounds,
        drafted=drafted,
        accepted=accepted,
        interval=ratio.interval() if ratio else None,
        tokens_per_round=sent,
        doubts=doubts,
    )


def doubts_of(
    counts: DraftCounts, *, fell: bool = False, sent_tokens: int | None = None
) -> list[str]:
    """Return what cannot be right in a server's counts; flawless ones are doubted where the drafts
    are many.
    """
    rounds = counts.rounds
    drafted = counts.drafted
    accepted = counts.accepted
    first = counts.accepted_first
    lines = ["its counters fell, as if it had been started again"] if fell else []
    if drafted is not None and accepted is not None and accepted > drafted:
        lines.append(f"it accepted {accepted} tokens and drafted {drafted}")
    elif drafted and drafted >= MANY_DRAFTED and accepted == drafted:
        lines.append(f"it accepted every one of {drafted} drafted tokens")
    elif (
        rounds
        and first is not None
        and (first > rounds or (first == rounds and rounds >= MANY_DRAFTED))
    ):
        lines.append(f"it accepted the first drafted token {first} times in {rounds} rounds")
    if rounds and sent_tokens is not None and sent_tokens < rounds:
        lines.append(
            f"it counted {rounds} rounds for {sent_tokens} tokens, as if others used it too"
        )
    return lines


def is_constant(loads: Sequence[Speculation], repeated: OutputAgreement) -> bool:
    """Return True if a server's acceptance rate moves less from load to load than chance alone
    would move it.

    `repeated` compares the server's outputs at different loads: the same outputs have the same acceptance, as they
    should, so that rates say nothing where half of the outputs or more are the same.
    """
    from scipy.stats import studentized_range

    known = [
        (entry.acceptance_rate, entry.drafted or 0)
        for entry in loads
        if entry.acceptance_rate is not None
    ]
    rates = [rate for rate, drafted in known if drafted >= MANY_DRAFTED]
    if len(rates) < FEWEST_LOADS or repeated.share is None or repeated.share >= 0.5:
        return False
    mean = float(np.mean(rates))
    # Drafts that are accepted or not one by one move a rate least; those of one answer hang
    # together and move it more.
    error = sqrt(
        max(0.0, mean * (1 - mean))
        * float(np.mean([1 / drafted for _, drafted in known if drafted]))
    )
    if not error:
        return False
    return (
        float(studentized_range.cdf((max(rates) - min(rates)) / error, len(rates), np.inf))
        < CHANCE_OF_CONSTANCY
    )


def _total(counts: Sequence[DraftCounts]) -> DraftCounts:
    """Return the sums, each None if one of its parts is."""
    sums = {}
    for name in DraftCounts.__struct_fields__:
        values: list[int | None] = [getattr(count, name) for count in counts]
        sums[name] = None if None in values or not values else sum(value or 0 for value in values)
    return DraftCounts(**sums)
