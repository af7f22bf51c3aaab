"""What a tuning maximises: tokens per second, per verified token, or per second of drafting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.tuning.options import Objective


def tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Return the committed tokens over the seconds until the last request is answered."""
    return _tokens(records) / max(record.finished_s or 0.0 for record in records)


def seconds(record: RequestRecord) -> float:
    """Return the seconds of a request that is answered alone."""
    return record.e2e_s or 0.0


def verified_tokens(record: RequestRecord) -> float:
    """Return the drafted tokens that the server verified, which it is paid for.

    Its own token comes with each verification. A round without a draft is one of plain decoding, in which that token
    is what is paid for.
    """
    return sum(max(1, round_.submitted or 0) for round_ in record.rounds)


def drafting_s(record: RequestRecord) -> float:
    """Return the seconds of drafting, to which a device's energy is in proportion while it draws
    one power.
    """
    return sum(round_.draft_s or 0.0 for round_ in record.rounds)


@dataclass(frozen=True, slots=True)
class Measure:
    """How well a method does: committed tokens over what they take, the more the better."""

    spent: Callable[[RequestRecord], float]
    """What a request takes of what the objective saves."""
    best: str
    """What the method is called that does best."""
    unit: str
    speed: bool = False
    """True if requests that are decoded together take their time together."""

    def value(self, records: Sequence[RequestRecord]) -> float | None:
        """Return the committed tokens over what all requests take; None if that is nothing, as of a
        method that never drafts.
        """
        if self.speed:
            return tokens_per_s(records)
        spent = sum(map(self.spent, records))
        return _tokens(records) / spent if spent else None


OBJECTIVES: Mapping[Objective, Measure] = {
    "goodput": Measure(seconds, "the fastest", "tokens/s", speed=True),
    "cost": Measure(verified_tokens, "the cheapest", "tokens per verified token"),
    "energy": Measure(drafting_s, "the most frugal", "tokens per second of drafting"),
}


def _tokens(records: Sequence[RequestRecord]) -> int:
    return sum(len(record.output_ids) for record in records)
