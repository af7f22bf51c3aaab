"""Identical steps of a run: the same number of new tokens after about the same number of cached tokens."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from specbench_kit.decoding.records import RequestRecord

CONTEXT = 32
"""Width in cached tokens per request of the classes within which steps count as identical."""
DIGITS = 7
"""Decimals of a moment in seconds: requests of one batch commit at the same moment, up to rounding."""


class _StepShare(NamedTuple):
    """One request's part in a step."""

    is_prompt: bool
    submitted: int
    cached: int
    verify_s: float


def same_steps(records: Iterable[RequestRecord]) -> list[list[float]]:
    """Return verification seconds, one list for each kind of step; steps that include a prompt are left out."""
    steps: dict[float, list[_StepShare]] = defaultdict(list)
    for record in records:
        arrived_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        cached_tokens = accumulate((step.committed for step in record.rounds), initial=len(record.prompt_ids))
        for number, (step, cached) in enumerate(zip(record.rounds, cached_tokens, strict=False)):
            # Requests that were verified in one batch end their rounds at the same moment of the run's clock.
            moment_s = round(arrived_s + step.end_s, DIGITS)
            steps[moment_s].append(_StepShare(number == 0, step.submitted, cached, step.verify_s))
    kinds: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for shares in steps.values():
        if not any(share.is_prompt for share in shares):
            context = sum(share.cached for share in shares) // (CONTEXT * len(shares))
            kind = len(shares), sum(share.submitted for share in shares), context
            kinds[kind].append(sum(share.verify_s for share in shares))
    return list(kinds.values())
