"""Traces that know of drafted tokens only if they were right, as those of other tools do."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np

from specbench_kit.traces.trace import RequestTrace

ANY_TOKEN = 1
"""Stands for every token whose id is not recorded."""


class DraftOutcome(NamedTuple):
    """One verification: how many tokens were drafted, and how many of them accepted."""

    drafted: int
    accepted: int


def trace_of_lengths(
    request_id: str,
    category: str,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    lengths: Sequence[int],
    max_draft: int,
) -> RequestTrace:
    """Return the trace of a request in which a draft from offset t on has its first `lengths[t]`
    tokens right.

    Right tokens may reach beyond the output.
    """
    answer = np.array([*output_ids, *[ANY_TOKEN] * (max_draft + 1)], np.int32)
    target = np.lib.stride_tricks.sliding_window_view(answer, max_draft)[: len(output_ids)]
    is_right = np.arange(max_draft) < np.asarray(lengths)[:, None]
    return RequestTrace(
        request_id,
        category,
        list(prompt_ids),
        list(output_ids),
        "length",
        [ANY_TOKEN] * (max_draft + 1),
        np.where(is_right, target, target ^ 1),  # flipping a bit makes any other token
        np.empty((*target.shape, 0), np.float32),
    )


def trace_of_rounds(
    request_id: str,
    category: str,
    prompt_tokens: int,
    output_tokens: int,
    rounds: Sequence[DraftOutcome],
    max_draft: int,
    rate: float,
) -> RequestTrace:
    """Return the trace of a request from the outcomes of its verifications.

    They committed its output, and perhaps more, which is left out. A greedy draft model that goes
    on from the target's own tokens drafts what it drafted before them, so a round tells of each of
    its tokens if it was right, up to the first that was not. The token behind a fully accepted
    draft was never drafted: it counts as right at random, seeded by the request's id, at the
    request's own rate (see `rate_of_right_tokens`), of which `rate`, that of all requests, is one
    observation.
    """
    random = Random(request_id)
    own_rate = rate_of_right_tokens(rounds, rate)
    is_right: list[bool] = []
    for outcome in rounds:
        fully_accepted = outcome.accepted == outcome.drafted
        is_right += [True] * outcome.accepted + [fully_accepted and random.random() < own_rate]
    # How many tokens in a row are right from each offset on, counted from the end.
    runs = list(accumulate(reversed(is_right), lambda run, right: (run + 1) * right, initial=0))[
        :0:-1
    ]
    lengths = [min(run, max_draft) for run in runs][:output_tokens]
    output_ids = [ANY_TOKEN] * len(lengths)
    return trace_of_lengths(
        request_id, category, [ANY_TOKEN] * prompt_tokens, output_ids, lengths, max_draft
    )


def rate_of_right_tokens(rounds: Iterable[DraftOutcome], prior: float | None = None) -> float:
    """Return right tokens over judged ones, plus one judged token that is right by `prior` if that
    is given.
    """
    outcomes = list(rounds)
    right = sum(outcome.accepted for outcome in outcomes) + (prior or 0.0)
    judged = sum(outcome.accepted + (outcome.accepted < outcome.drafted) for outcome in outcomes)
    judged += prior is not None
    return right / judged if judged else 0.0
