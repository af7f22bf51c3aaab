"""WISP's Theorem 1: a bound on the tokens that a stop rule wastes in a round."""

from typing import TypedDict

import numpy as np

from specbench_kit.studies.training.contenders import ThresholdJudge
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.rounds import PlayedRounds


class BoundTerm(TypedDict):
    """One term of the bound: the probability that the first rejected token has position `rejection`, and FP there."""

    rejection: int
    probability: float
    false_positive_rate: float | None
    term: float


class WasteBound(TypedDict):
    """The bound, the measured waste per round in tokens, and the terms of the bound."""

    longest: int
    bound: float
    wasted_per_round: float
    terms: list[BoundTerm]


def waste_and_bound(offsets: Offsets, rounds: PlayedRounds, judge: ThresholdJudge) -> WasteBound:
    """Return the bound of Eq. 31, sum over r of (K - r + 1) P(R = r) FP(r), and the measured E[W] over the rounds.

    K is the judge's longest draft, R the position of the first token that the target rejects, FP(r) the share of the
    rounds with R = r in which the judge lets that token pass, and W the number of tokens sent from R on.
    """
    longest = judge.longest
    matched = np.minimum(offsets.matched[rounds.offset], longest)
    scores = judge.stopping_scores(offsets)[rounds.offset, np.minimum(matched, longest - 1)]
    passes = scores >= judge.threshold
    terms: list[BoundTerm] = []
    for position in range(1, longest + 1):
        rejected = matched == position - 1
        probability = float(rejected.mean())
        false_positive = float(passes[rejected].mean()) if rejected.any() else None
        terms.append(
            {
                "rejection": position,
                "probability": probability,
                "false_positive_rate": false_positive,
                "term": (longest - position + 1) * probability * (false_positive or 0.0),
            }
        )
    return {
        "longest": longest,
        "bound": sum(term["term"] for term in terms),
        "wasted_per_round": float(np.maximum(0, rounds.submitted - matched).mean()),
        "terms": terms,
    }
