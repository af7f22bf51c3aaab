"""Play a stop rule over offsets: the rounds that a replay gives, computed on arrays without an
engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench_kit.studies.training.offsets import Integers, Offsets

Scores = NDArray[np.float64]
"""A score for every drafted token at every offset, [n, max_draft]."""
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlannedDrafts:
    """The tokens that a stop rule drafts and submits in a round from each offset, each array
    [n].
    """

    drafted: Integers
    submitted: Integers


@dataclass(frozen=True, slots=True)
class PlayedRounds:
    """The rounds of all requests, in order; `offset` is the row of the offsets at which each round
    starts.
    """

    offset: Integers
    drafted: Integers
    submitted: Integers
    accepted: Integers
    committed: Integers


def fixed_length(offsets: Offsets, count: int) -> PlannedDrafts:
    """Return a plan that always drafts `count` tokens; 0 is plain decoding."""
    constant = np.full(len(offsets), count)
    return PlannedDrafts(constant, constant)


def stop_at_rejection(offsets: Offsets) -> PlannedDrafts:
    """Return the plan of a rule that is never wrong: it stops at the first rejected token and does
    not submit it.
    """
    agreed = np.minimum(offsets.matched, offsets.remaining)
    return PlannedDrafts(np.minimum(agreed + 1, offsets.max_draft), agreed)


def fastest_lengths(offsets: Offsets, round_s: Sequence[float]) -> PlannedDrafts:
    """Return the oracle's plan: of right tokens, as many in every round as let the answers take the
    least time.

    A round that drafts n tokens takes `round_s[n]` seconds. This is dynamic programming from the
    end of each answer.
    """
    seconds = np.asarray(round_s)
    right = np.minimum(np.minimum(offsets.matched, offsets.drafted), len(seconds) - 1)
    lengths = np.zeros(len(offsets), dtype=np.int64)
    left_s = np.zeros(len(offsets) + 1)
    """Until the end of the answer, from each offset."""
    for row in reversed(range(len(offsets))):
        drafted = np.arange(right[row] + 1)
        committed = np.minimum(drafted + 1, offsets.remaining[row])
        rest_s = np.where(
            committed < offsets.remaining[row],
            left_s[np.minimum(row + committed, len(offsets))],
            0.0,
        )
        total_s = seconds[drafted] + rest_s
        lengths[row] = total_s.argmin()
        left_s[row] = total_s[lengths[row]]
    return PlannedDrafts(lengths, lengths)


def stop_below(scores: Scores, threshold: float, *, send_last: bool = False) -> PlannedDrafts:
    """Return a plan that stops at the first score below the threshold.

    That token is not submitted, as with the method `wisp`, unless `send_last`.
    """
    passed = np.logical_and.accumulate(scores >= threshold, axis=1).sum(axis=1)
    drafted = np.minimum(passed + 1, scores.shape[1])
    return PlannedDrafts(drafted, drafted if send_last else passed)


def stop_below_each(
    scores: Scores, thresholds: Sequence[float], *, send_last: bool = False
) -> PlannedDrafts:
    """Return the plans of `stop_below` for several thresholds, as arrays [thresholds, n]."""
    # A score passes together with all scores before it if their minimum passes, which is the same
    # for all thresholds.
    lowest = np.minimum.accumulate(scores, axis=1)
    passed = np.stack([(lowest >= threshold).sum(axis=1) for threshold in thresholds])
    drafted = np.minimum(passed + 1, scores.shape[1])
    return PlannedDrafts(drafted, drafted if send_last else passed)


def possible(offsets: Offsets, plan: PlannedDrafts) -> PlannedDrafts:
    """Return the plan without the tokens that nobody drafted: some drafts end before the plan
    does.
    """
    return PlannedDrafts(
        np.minimum(plan.drafted, offsets.drafted), np.minimum(plan.submitted, offsets.drafted)
    )


def total_seconds(offsets: Offsets, plans: PlannedDrafts, seconds: Seconds) -> Seconds:
    """Return the time of all rounds of several plans, [plans].

    `plans` holds arrays [plans, n]; a round from each offset takes `seconds` [plans, n].
    """
    count, offset_count = seconds.shape
    committed = np.minimum(np.minimum(plans.submitted, offsets.matched) + 1, offsets.remaining)
    # All plans and requests advance together: `cell` is the flat index [plan, offset] of each one's
    # current round.
    is_last = (committed == offsets.remaining).ravel()
    successor = (np.arange(seconds.size).reshape(seconds.shape) + committed).ravel()
    cell = (offset_count * np.arange(count)[:, None] + offsets.first).ravel()
    plan = np.repeat(np.arange(count), len(offsets.first))
    total = np.zeros(count)
    flat_seconds = seconds.ravel()
    while cell.size:
        total += np.bincount(plan, weights=flat_seconds.take(cell), minlength=count)
        continues = ~is_last.take(cell)
        cell = successor.take(cell[continues])
        plan = plan[continues]
    return total


def play(offsets: Offsets, plan: PlannedDrafts) -> PlayedRounds:
    """Return the rounds from each request's first offset to its end, exactly those of
    `traces.replay.replay`.
    """
    plan = possible(offsets, plan)
    accepted = np.minimum(plan.submitted, offsets.matched)
    committed = np.minimum(accepted + 1, offsets.remaining)
    current = offsets.first
    visited = [current]
    while len(current):
        continues = committed[current] < offsets.remaining[current]
        current = (current + committed[current])[continues]
        visited.append(current)
    rows = np.sort(np.concatenate(visited))
    return PlayedRounds(
        rows, plan.drafted[rows], plan.submitted[rows], accepted[rows], committed[rows]
    )
