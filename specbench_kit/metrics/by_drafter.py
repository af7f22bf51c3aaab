"""The rounds of a run by the drafter that drafted for them, where a method has several to choose from."""

from collections.abc import Iterable
from dataclasses import dataclass

from specbench_kit.core.plain_text import one_line
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import ratio_of_sums

NO_DRAFT = "none"
"""Stands for the rounds in which no drafter had a token."""


@dataclass(slots=True)
class DrafterRounds:
    """The rounds of one drafter; `share` is its part of all rounds."""

    name: str
    rounds: int = 0
    share: float = 0.0
    submitted: int = 0
    accepted: int = 0
    committed: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Return accepted over submitted tokens; None if nothing was submitted."""
        return ratio_of_sums(self.accepted, self.submitted)

    @property
    def acceptance_length(self) -> float | None:
        """Return committed tokens per verification."""
        return ratio_of_sums(self.committed, self.rounds)


def by_drafter(records: Iterable[RequestRecord]) -> list[DrafterRounds]:
    """Return the rounds by drafter, the most frequent first; empty if no round says who drafted."""
    found: dict[str, DrafterRounds] = {}
    for record in records:
        for step in record.rounds:
            name = one_line(step.drafter) or NO_DRAFT
            part = found.setdefault(name, DrafterRounds(name))
            part.rounds += 1
            part.submitted += step.submitted or 0
            part.accepted += step.accepted
            part.committed += step.committed
    if not set(found) - {NO_DRAFT}:
        return []
    total = sum(part.rounds for part in found.values())
    for part in found.values():
        part.share = part.rounds / total
    return sorted(found.values(), key=lambda part: -part.rounds)
