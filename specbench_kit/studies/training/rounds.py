"""Play a stop rule over offsets: the rounds that a replay gives, without an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench_kit.studies.training.offsets import Integers, Offsets

Scores = NDArray[np.float64]
"""Of every drafted token at every offset, [n, max_draft]."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stop rule does in a round from each offset: tokens `drafted`, and `submitted` of those, each [n]."""

    drafted: Integers
    submitted: Integers


@dataclass(frozen=True, slots=True)
class RoundArrays:
    """The rounds of all requests, in order; `offset` is where each starts, as a row of the offsets."""

    offset: Integers
    drafted: Integers
    submitted: Integers
    accepted: Integers
    committed: Integers


def fixed_length(offsets: Offsets, count: int) -> Plan:
    """Always that many tokens; none is plain decoding."""
    constant = np.full(len(offsets), count)
    return Plan(constant, constant)


def until_rejection(offsets: Offsets) -> Plan:
    """The oracle: stop at the first token that the answer does not have, and keep it back."""
    agreed = np.minimum(offsets.matched, offsets.remaining)
    return Plan(np.minimum(agreed + 1, offsets.max_draft), agreed)


def until_below(scores: Scores, threshold: float, *, send_last: bool = False) -> Plan:
    """Stop at the first score below the threshold; that token is kept back, as `wisp` does, or sent."""
    passed = np.logical_and.accumulate(scores >= threshold, axis=1).sum(axis=1)
    drafted = np.minimum(passed + 1, scores.shape[1])
    return Plan(drafted, drafted if send_last else passed)


def until_below_each(scores: Scores, thresholds: Sequence[float], *, send_last: bool = False) -> Plan:
    """The same for several thresholds: a plan of shape [thresholds, n]."""
    lowest = np.minimum.accumulate(scores, axis=1)
    passed = np.stack([(lowest >= threshold).sum(axis=1) for threshold in thresholds])
    drafted = np.minimum(passed + 1, scores.shape[1])
    return Plan(drafted, drafted if send_last else passed)


def seconds_of_each(offsets: Offsets, plans: Plan, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """What several plans [plans, n] take altogether, when a round from each offset takes `seconds` [plans, n]."""
    count, places = seconds.shape
    committed = np.minimum(np.minimum(plans.submitted, offsets.matched) + 1, offsets.remaining)
    last = (committed == offsets.remaining).ravel()
    follows = (np.arange(seconds.size).reshape(seconds.shape) + committed).ravel()
    at = (places * np.arange(count)[:, None] + offsets.first).ravel()
    plan, total, taken = np.repeat(np.arange(count), len(offsets.first)), np.zeros(count), seconds.ravel()
    while at.size:
        total += np.bincount(plan, weights=taken.take(at), minlength=count)
        goes_on = ~last.take(at)
        at, plan = follows.take(at[goes_on]), plan[goes_on]
    return total


def play(offsets: Offsets, plan: Plan) -> RoundArrays:
    """The rounds from each request's first offset to its end; exactly those of `traces.replay.replay`."""
    accepted = np.minimum(plan.submitted, offsets.matched)
    committed = np.minimum(accepted + 1, offsets.remaining)
    here = offsets.first
    visited = [here]
    while len(here):
        goes_on = committed[here] < offsets.remaining[here]
        here = (here + committed[here])[goes_on]
        visited.append(here)
    at = np.sort(np.concatenate(visited))
    return RoundArrays(at, plan.drafted[at], plan.submitted[at], accepted[at], committed[at])
