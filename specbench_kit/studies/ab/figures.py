"""The figures of one server under one load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.live.engines.answers import AnswerRecord, CounterChange, StreamedAnswer
from specbench_kit.metrics.latency import distribution, gaps_of_bursts
from specbench_kit.metrics.rounds import Array
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.metrics.vocabulary import DistributionValues
from specbench_kit.studies.ab.speculation import speculation
from specbench_kit.studies.ab.summary import ServerFigures, Validity
from specbench_kit.studies.ab.thinking import LengthUnit, thinking_figures


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
    """Return when a turn's first request was sent and its last token arrived, by repeat and
    turn.
    """
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for record in records:
        place = record.key.repeat, record.turn
        begin_s, end_s = spans.get(place, (record.sent_s, record.ended_s))
        spans[place] = min(begin_s, record.sent_s), max(end_s, record.ended_s)
    return spans


def busy_seconds(records: Sequence[AnswerRecord]) -> float:
    """Return the time in which a server had turns to answer; turns of another tool's results may
    overlap.
    """
    total_s = 0.0
    until_s = -np.inf
    for begin_s, end_s in sorted(turn_spans(records).values()):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


def server_figures(
    records: Sequence[AnswerRecord],
    targets: Targets,
    changes: Sequence[CounterChange],
    validity: Validity | None = None,
    thinking_unit: LengthUnit = "tokens",
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
        itl=_distribution(gaps_s(answers)),
        e2e=_distribution([answer.e2e_s for answer in answers]),
        goodput=ratio_of_sums(sum(answer.tokens for answer in good), busy_s)
        if targets != NO_TARGETS
        else None,
        attainment=ratio_of_sums(len(good), len(records)) if targets != NO_TARGETS else None,
        speculation=speculation(records, changes),
        validity=validity,
        counted_by=sorted({answer.counted_by for answer in answers}),
        cached_tokens=sum(answer.cached_tokens or 0 for answer in answers),
        retry_reasons=dict(
            Counter(reason for record in records for reason in record.retry_reasons)
        ),
        late_p99_s=float(np.quantile([record.late_s for record in records], 0.99))
        if records
        else None,
        thinking=thinking_figures(answers, thinking_unit),
    )


def _distribution(values: Sequence[float] | Array) -> DistributionValues:
    return DistributionValues(**distribution(values))


def gaps_s(answers: Sequence[StreamedAnswer]) -> Array:
    """Return the gaps between the tokens of answers; those of a burst share the gap before it."""
    rows = [
        (number, burst.tokens, burst.at_s)
        for number, answer in enumerate(answers)
        for burst in answer.bursts
        if burst.tokens
    ]
    owner, sizes, moments_s = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return gaps_of_bursts(owner, sizes, moments_s)
