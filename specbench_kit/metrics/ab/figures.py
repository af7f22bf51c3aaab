"""The figures of one server under one load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specbench_kit.metrics.ab.answers import AnswerRecord, CounterChange, DraftCounts, StreamedAnswer
from specbench_kit.metrics.ab.summary import Distribution, ServerFigures, Speculation
from specbench_kit.metrics.latency import distribution, gaps_of_bursts
from specbench_kit.metrics.rounds import Array
from specbench_kit.metrics.statistics import Ratio, ratio_of_sums

MANY_DRAFTED = 50
"""Drafted tokens, or rounds, from which a flawless record is no chance."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The latencies that goodput asks for, in seconds; None asks for nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met_by(self, answer: StreamedAnswer) -> bool:
        """Return True if an answer kept both."""
        is_prompt = self.ttft_s is None or answer.ttft_s <= self.ttft_s
        return is_prompt and (self.tpot_s is None or (answer.tpot_s or 0.0) <= self.tpot_s)


NO_TARGETS = Targets()


def turn_spans(records: Sequence[AnswerRecord]) -> dict[tuple[int, int], tuple[float, float]]:
    """Return when a turn's first request was sent and its last token arrived, by repeat and turn."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for record in records:
        place = record.key.repeat, record.turn
        begin_s, end_s = spans.get(place, (record.sent_s, record.ended_s))
        spans[place] = min(begin_s, record.sent_s), max(end_s, record.ended_s)
    return spans


def busy_seconds(records: Sequence[AnswerRecord]) -> float:
    """Return the time in which a server had turns to answer; turns of another tool's results may overlap."""
    total_s, until_s = 0.0, -np.inf
    for begin_s, end_s in sorted(turn_spans(records).values()):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def server_figures(
    records: Sequence[AnswerRecord], targets: Targets, changes: Sequence[CounterChange]
) -> ServerFigures:
    """Return the figures over the records of one server under one load."""
    answers = [record.answer for record in records if record.answer is not None]
    busy_s = busy_seconds(records)
    tokens = sum(answer.tokens for answer in answers)
    good = [answer for answer in answers if targets.met_by(answer)] if targets != NO_TARGETS else []
    bursts = [burst.tokens for answer in answers for burst in answer.bursts[1:]]
    return ServerFigures(
        finished=len(answers),
        failed=len(records) - len(answers),
        retried=sum(record.attempts > 1 for record in records),
        tokens=tokens,
        throughput=ratio_of_sums(tokens, busy_s),
        in_flight=ratio_of_sums(sum(answer.e2e_s for answer in answers), busy_s),
        tokens_per_burst=float(np.mean(bursts)) if bursts else None,
        ttft=_distribution([answer.ttft_s for answer in answers]),
        tpot=_distribution([answer.tpot_s for answer in answers if answer.tpot_s is not None]),
        itl=_distribution(_gaps_s(answers)),
        e2e=_distribution([answer.e2e_s for answer in answers]),
        goodput=ratio_of_sums(sum(answer.tokens for answer in good), busy_s) if targets != NO_TARGETS else None,
        attainment=ratio_of_sums(len(good), len(records)) if targets != NO_TARGETS else None,
        speculation=_speculation(records, changes),
        counted_by=sorted({answer.counted_by for answer in answers}),
        cached_tokens=sum(answer.cached_tokens or 0 for answer in answers),
        retry_reasons=dict(Counter(reason for record in records for reason in record.retry_reasons)),
        late_p99_s=float(np.quantile([record.late_s for record in records], 0.99)) if records else None,
    )


def _distribution(values: Sequence[float] | Array) -> Distribution:
    return Distribution(**distribution(values))


def _gaps_s(answers: Sequence[StreamedAnswer]) -> Array:
    rows = [(number, burst.tokens, burst.at_s) for number, answer in enumerate(answers) for burst in answer.bursts]
    owner, sizes, moments_s = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return gaps_of_bursts(owner, sizes, moments_s)


def _speculation(records: Sequence[AnswerRecord], changes: Sequence[CounterChange]) -> Speculation | None:
    """Return acceptance by what the answers report, or by the server's counters; None for a server without any."""
    answered = [(record.turn, record.answer) for record in records if record.answer is not None]
    reported = [(turn, answer, answer.drafts) for turn, answer in answered if answer.drafts is not None]
    # Answers in which nothing was drafted count as rounds of one token each, unless the server never drafts.
    if any(drafts.drafted != 0 for _, _, drafts in reported):
        counts = _total([drafts for _, _, drafts in reported])
        length = ratio_of_sums(sum(answer.committed for _, answer, _ in reported), counts.rounds or 0)
        interval = _interval([(turn, answer.committed, drafts.rounds or 0) for turn, answer, drafts in reported])
        return _described("each answer", counts, length, interval, None)
    if not changes:
        return None
    counts = _total([change.counts for change in changes if not change.fell])
    # Requests that failed or were sent again are counted there, while no answer holds their tokens.
    whole = all(record.answer is not None and record.attempts == 1 for record in records)
    tokens = sum(answer.tokens for _, answer in answered)
    sent = ratio_of_sums(tokens, counts.rounds or 0) if whole else None
    return _described("counters", counts, _by_counts(counts), None, sent, fell=any(change.fell for change in changes))


def _by_counts(counts: DraftCounts) -> float | None:
    """Return the acceptance length by the counts alone: every round commits one token besides the accepted ones."""
    return 1 + counts.accepted / counts.rounds if counts.rounds and counts.accepted is not None else None


def _interval(rows: Sequence[tuple[int, int, int]]) -> list[float] | None:
    """Return the interval of tokens per round from the turn, tokens and rounds of each answer."""
    turns, tokens, rounds = zip(*rows, strict=True)
    ratio = Ratio.of([np.bincount(turns, weights=tokens)], [np.bincount(turns, weights=rounds)])
    return ratio.interval() if ratio else None


def _described(
    source: Literal["each answer", "counters"],
    counts: DraftCounts,
    length: float | None,
    interval: list[float] | None,
    tokens_per_round: float | None,
    *,
    fell: bool = False,
) -> Speculation:
    drafted, accepted = counts.drafted, counts.accepted
    rate = accepted / drafted if drafted and accepted is not None else None
    doubts = [*(["its counters fell, as if it had been started again"] if fell else []), *doubts_of(counts)]
    return Speculation(source, length, rate, counts.rounds, drafted, accepted, interval, tokens_per_round, doubts)


def doubts_of(counts: DraftCounts) -> list[str]:
    """Return what counts say that no speculation does; few drafts prove nothing."""
    rounds, drafted, accepted, first = counts.rounds, counts.drafted, counts.accepted, counts.accepted_first
    lines = []
    if drafted is not None and accepted is not None and accepted > drafted:
        lines.append(f"it accepted {accepted} tokens and drafted {drafted}")
    if drafted and drafted >= MANY_DRAFTED and accepted == drafted:
        lines.append(f"it accepted every one of {drafted} drafted tokens")
    elif rounds and rounds >= MANY_DRAFTED and first is not None and first >= rounds:
        lines.append(f"it accepted the first drafted token of every one of {rounds} rounds")
    return lines


def _total(counts: Sequence[DraftCounts]) -> DraftCounts:
    """Return the sums, each None if one of its parts is."""
    sums = {}
    for name in DraftCounts.__struct_fields__:
        values: list[int | None] = [getattr(count, name) for count in counts]
        sums[name] = None if None in values else sum(value or 0 for value in values)
    return DraftCounts(**sums)
