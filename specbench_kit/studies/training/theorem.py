"""WISP's Theorem 1: a bound on the tokens that a stop rule wastes in a round."""

from typing import Any

import numpy as np

from specbench_kit.studies.training.contenders import ThresholdJudge
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.rounds import RoundArrays


def waste_and_bound(offsets: Offsets, rounds: RoundArrays, judge: ThresholdJudge) -> dict[str, Any]:
    """Eq. 31, sum over r of (K - r + 1) P(R = r) FP(r), beside the measured E[W], over the judge's rounds.

    K is the judge's longest draft, R the place of a round's first token that the target rejects, FP(r) the share of
    rounds with R = r in which the judge lets that token pass, W the tokens sent from R on. `terms` holds P(R = r),
    FP(r) and their term by r.
    """
    matched = np.minimum(offsets.matched[rounds.offset], judge.longest)
    scores = judge.compared(offsets)[rounds.offset, np.minimum(matched, judge.longest - 1)]
    passes = scores >= judge.threshold
    terms = [_term(place, judge.longest, matched, passes) for place in range(1, judge.longest + 1)]
    return {
        "longest": judge.longest,
        "bound": sum(term["term"] or 0.0 for term in terms),
        "wasted_per_round": float(np.maximum(0, rounds.submitted - matched).mean()),
        "terms": terms,
    }


def _term(place: int, longest: int, matched: Any, passes: Any) -> dict[str, float | None]:
    here = matched == place - 1
    share = float(here.mean())
    false_positive = float(passes[here].mean()) if here.any() else None
    return {
        "rejection": place,
        "probability": share,
        "false_positive_rate": false_positive,
        "term": (longest - place + 1) * share * (false_positive or 0.0),
    }
