"""Traces that know of drafts only whether they were right, as those of other tools do."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np

from specbench_kit.traces.trace import RequestTrace

UNNAMED = 1
"""Stands for every token whose id is not on record."""


class VerifiedRound(NamedTuple):
    """One verification: how many tokens were drafted, and how many of them accepted."""

    drafted: int
    accepted: int


def of_lengths(
    request_id: str,
    category: str,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    lengths: Sequence[int],
    max_draft: int,
) -> RequestTrace:
    """The trace of a request in which a draft from offset t on has its first `lengths[t]` tokens right.

    They may reach beyond the output.
    """
    answer = np.array([*output_ids, *[UNNAMED] * (max_draft + 1)], np.int32)
    said = np.lib.stride_tricks.sliding_window_view(answer, max_draft)[: len(output_ids)]
    right = np.arange(max_draft) < np.asarray(lengths)[:, None]
    return RequestTrace(
        request_id,
        category,
        list(prompt_ids),
        list(output_ids),
        "length",
        [UNNAMED] * (max_draft + 1),
        np.where(right, said, said ^ 1),
        np.empty((*said.shape, 0), np.float32),
    )


def of_rounds(
    request_id: str,
    category: str,
    prompt_tokens: int,
    output_tokens: int,
    rounds: Sequence[VerifiedRound],
    max_draft: int,
    rate: float,
) -> RequestTrace:
    """The trace of a request whose verifications committed its output, and perhaps more, which is left out.

    A greedy draft model that goes on from the target's own tokens drafts what it drafted before them: a round tells of
    each of its tokens whether it was right, up to the first that was not. The token that follows a draft which was
    accepted whole was never drafted: it counts as right at random, seeded by the request's id, as often as the
    request's judged tokens were, with one more of them at `rate`, that of all requests.
    """
    random, own = Random(request_id), right_rate(rounds, rate)
    right = [one for verified in rounds for one in _right(verified, own, random)]
    lengths = [min(length, max_draft) for length in _runs(right)][:output_tokens]
    unnamed = [UNNAMED] * len(lengths)
    return of_lengths(request_id, category, [UNNAMED] * prompt_tokens, unnamed, lengths, max_draft)


def right_rate(rounds: Iterable[VerifiedRound], prior: float | None = None) -> float:
    """Right tokens / those that were judged, and one more that is right by `prior`, where there is one."""
    known = list(rounds)
    right = sum(one.accepted for one in known) + (prior or 0.0)
    judged = sum(one.accepted + (one.accepted < one.drafted) for one in known) + (prior is not None)
    return right / judged if judged else 0.0


def _right(verified: VerifiedRound, rate: float, random: Random) -> list[bool]:
    """Of the tokens that a verification commits."""
    last = verified.accepted == verified.drafted and random.random() < rate
    return [True] * verified.accepted + [last]


def _runs(right: Sequence[bool]) -> list[int]:
    """How many in a row are right from each place on."""
    return list(accumulate(reversed(right), lambda run, one: (run + 1) * one, initial=0))[:0:-1]
