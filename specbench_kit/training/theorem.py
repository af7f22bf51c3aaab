"""WISP's Theorem 1: a bound on the tokens that a stop rule wastes in a round."""

from typing import Any

import numpy as np

from specbench_kit.predictors.scoring import Scores
from specbench_kit.training.offsets import Offsets
from specbench_kit.training.rounds import Rounds


def waste_and_bound(offsets: Offsets, rounds: Rounds, scores: Scores, threshold: float) -> dict[str, Any]:
    """Eq. 31, sum over r of (max_draft - r + 1) P(R = r) FP(r), beside the measured E[W], over the rounds.

    R is the place of a round's first token that the target rejects, FP(r) the share of rounds with R = r in which
    the rule lets that token pass, W the tokens sent from R on. `terms` holds P(R = r), FP(r) and their term by r.
    """
    matched = offsets.matched[rounds.offset]
    passes = scores[rounds.offset, np.minimum(matched, offsets.max_draft - 1)] >= threshold
    terms = [_term(place, offsets.max_draft, matched, passes) for place in range(1, offsets.max_draft + 1)]
    return {
        "bound": sum(term["term"] for term in terms),
        "wasted_per_round": float(np.maximum(0, rounds.submitted - matched).mean()),
        "terms": terms,
    }


def _term(place: int, max_draft: int, matched: Any, passes: Any) -> dict[str, float | None]:
    here = matched == place - 1
    share = float(here.mean())
    false_positive = float(passes[here].mean()) if here.any() else None
    return {
        "rejection": place,
        "probability": share,
        "false_positive_rate": false_positive,
        "term": (max_draft - place + 1) * share * (false_positive or 0.0),
    }
