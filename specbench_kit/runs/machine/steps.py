"""The steps of a run that are one and the same: as many new tokens, after about as many cached ones."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from specbench_kit.decoding.records import RequestRecord

CONTEXT = 32
"""Cached tokens per request within which steps count as the same."""
DIGITS = 7
"""Of a moment in seconds: the requests of one batch commit at the same."""


class _Row(NamedTuple):
    """One request's part in a step."""

    is_prompt: bool
    submitted: int
    cached: int
    verify_s: float


def same_steps(records: Iterable[RequestRecord]) -> list[list[float]]:
    """Verification seconds by kind of step; steps that brought a prompt along are left out."""
    steps: dict[float, list[_Row]] = defaultdict(list)
    for record in records:
        for moment_s, row in _rows(record):
            steps[round(moment_s, DIGITS)].append(row)
    kinds: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for rows in steps.values():
        if not any(row.is_prompt for row in rows):
            context = sum(row.cached for row in rows) // (CONTEXT * len(rows))
            kind = len(rows), sum(row.submitted for row in rows), context
            kinds[kind].append(sum(row.verify_s for row in rows))
    return list(kinds.values())


def _rows(record: RequestRecord) -> Iterator[tuple[float, _Row]]:
    """Each round, and when it ended on the run's clock."""
    arrived_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
    committed = accumulate((one.committed for one in record.rounds), initial=len(record.prompt_ids))
    for number, (one, cached) in enumerate(zip(record.rounds, committed, strict=False)):
        yield arrived_s + one.end_s, _Row(number == 0, one.submitted, cached, one.verify_s)
