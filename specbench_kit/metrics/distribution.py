"""Residual sampling held against what the two models say along the sampled outputs: acceptance and tokens."""

from dataclasses import dataclass, field
from math import erfc, exp, sqrt
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from specbench_kit.decoding.records import RequestRecord

LEVEL = 0.001
"""Of the three tests together: how often a right rule is called wrong."""
EACH = LEVEL / 3
WANTED_POWER = 0.8
"""A run that finds each of the two faults less often than this is left undecided."""
RATIOS = (0.5, 1.0, 2.0)
"""Tokens fall into classes by target probability over draft probability, with these bounds."""
ENOUGH = 5.0
"""Tokens that a class must be expected to hold."""
WEAKER = 0.8
"""The first fault that power is stated for: acceptance with probability min(1, p/q) to this power."""


@dataclass
class SamplingTally:
    """Sums over places where a drafted token was judged, and over all committed tokens.

    `accepted` stands beside what 1 - total variation makes expected, with its `variance`; `surplus` is how
    many more committed tokens each class holds than the target's distribution expects, with its `covariance`.
    `softness` sums the score of the first fault, which is 0 on average: how much likelier than under the right rule it
    makes what happened, an accepted token or a rejection. `softened` and `unmended` are what `acceptance` and `surplus`
    would come to under the two faults: that one, and an extra token drawn from p where it should be from max(0, p - q).
    """

    places: int = 0
    tokens: int = 0
    accepted: int = 0
    expected: float = 0.0
    variance: float = 0.0
    softened: float = 0.0
    softness: float = 0.0
    softness_variance: float = 0.0
    surplus: Tensor = field(default_factory=lambda: torch.zeros(len(RATIOS) + 1, dtype=torch.float64))
    counts: Tensor = field(default_factory=lambda: torch.zeros(len(RATIOS) + 1, dtype=torch.float64))
    covariance: Tensor = field(default_factory=lambda: torch.zeros((len(RATIOS) + 1,) * 2, dtype=torch.float64))
    unmended: Tensor = field(default_factory=lambda: torch.zeros(len(RATIOS) + 1, dtype=torch.float64))

    def add(self, record: RequestRecord, target: Tensor, draft: Tensor) -> None:
        """One output with both models' distributions before each of its tokens, each [tokens, vocabulary]."""
        at = 0
        for one in record.rounds:
            for place in range(min(one.accepted + 1, len(record.output_ids) - at)):
                row = _Row(target[at + place].double(), draft[at + place].double())
                self._add_token(row, record.output_ids[at + place])
                if place < one.submitted:
                    self._add_place(row, record.output_ids[at + place] if place < one.accepted else None)
            at += one.committed

    def _add_token(self, row: "_Row", token: int) -> None:
        mass = row.by_class(row.target)
        self.tokens += 1
        self.counts += mass
        self.surplus -= mass
        self.surplus[row.classes[token]] += 1
        self.covariance += mass.diag() - mass.outer(mass)

    def _add_place(self, row: "_Row", token: int | None) -> None:
        """One judged token, None where it was rejected."""
        chance = float(row.overlap.sum())
        self.places += 1
        self.accepted += token is not None
        self.expected += chance
        self.variance += chance * (1 - chance)
        ratio = (row.overlap / row.draft).nan_to_num(1.0)
        softened = float((row.draft * ratio**WEAKER).sum()) - chance
        self.softened += softened
        if chance < 1:
            gain = torch.where(row.overlap > 0, ratio ** (WEAKER - 1) - 1, 0.0)
            lost = -softened / (1 - chance)
            self.softness += lost if token is None else float(gain[token])
            self.softness_variance += float((row.overlap * gain**2).sum()) + (1 - chance) * lost**2
        self.unmended += (1 - chance) * row.by_class(row.target) - row.by_class(row.target - row.overlap)


class _Row:
    """The two distributions before one token, and each token's class."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        self.target, self.draft = target, draft
        self.overlap = torch.minimum(target, draft)
        bounds = torch.tensor(RATIOS, dtype=torch.float64, device=target.device)
        self.classes = torch.bucketize(target / draft.clamp(min=1e-300), bounds, right=True)

    def by_class(self, values: Tensor) -> Tensor:
        """Sums [classes] of values [vocabulary]."""
        return torch.bincount(self.classes, values, len(RATIOS) + 1).cpu()


def summarise_tally(tally: SamplingTally) -> dict[str, Any]:
    """All tests with their power, for `summary.json`; `consistent` is None where too little was drawn to tell."""
    acceptance, softness, tokens = tests = _acceptance(tally), _softness(tally), _tokens(tally)
    p_values = [test["p_value"] for test in tests if test["p_value"] is not None]
    wrong = any(p_value < EACH for p_value in p_values)
    strong = all((test["power"] or 0.0) >= WANTED_POWER for test in (softness, tokens))
    return {
        "rule": "residual",
        "consistent": False if wrong else True if strong else None,
        "level": LEVEL,
        "acceptance": acceptance,
        "softness": softness,
        "tokens": tokens,
    }


def _acceptance(tally: SamplingTally) -> dict[str, Any]:
    """Judged tokens accepted against the sum of 1 - total variation, a martingale: normal."""
    spread = sqrt(tally.variance)
    known = spread > 0
    difference = tally.accepted - tally.expected
    return {
        "places": tally.places,
        "rate": tally.accepted / tally.places if tally.places else None,
        "expected_rate": tally.expected / tally.places if tally.places else None,
        "p_value": erfc(abs(difference) / spread / sqrt(2)) if known else None,
        "power": _normal_power(abs(tally.softened) / spread) if known else None,
    }


def _softness(tally: SamplingTally) -> dict[str, Any]:
    """Which drafted tokens were accepted: the score of the softened rule, most powerful against it."""
    spread = sqrt(tally.softness_variance)
    return {
        "places": tally.places,
        "score": tally.softness / spread if spread else None,
        "p_value": erfc(abs(tally.softness) / spread / sqrt(2)) if spread else None,
        "power": _normal_power(spread) if spread else None,
    }


def _tokens(tally: SamplingTally) -> dict[str, Any]:
    """Committed tokens by class against the target's distribution: chi-square."""
    kept = (tally.counts >= ENOUGH).nonzero()[:, 0]
    covariance = tally.covariance[kept][:, kept]
    degrees = min(int(torch.linalg.matrix_rank(covariance, hermitian=True)), len(RATIOS)) if len(kept) > 1 else 0
    inverse = torch.linalg.pinv(covariance, hermitian=True)
    statistic, shift = (float(one[kept] @ inverse @ one[kept]) for one in (tally.surplus, tally.unmended))
    return {
        "drawn": tally.tokens,
        "classes": len(kept),
        "degrees": degrees,
        "chi_square": statistic if degrees else None,
        "p_value": tail(statistic, degrees) if degrees else None,
        "power": _chi_square_power(shift, degrees) if degrees else None,
    }


def tail(statistic: float, degrees: int) -> float:
    """Chance that a chi-square of these degrees of freedom is at least `statistic`."""
    halves = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _normal_power(shift: float) -> float:
    edge = NormalDist().inv_cdf(1 - EACH / 2)
    return NormalDist().cdf(shift - edge) + NormalDist().cdf(-shift - edge)


def _chi_square_power(shift: float, degrees: int) -> float:
    """A non-central chi-square is a Poisson mixture of central ones."""
    if shift > 500:
        return 1.0
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degrees) > EACH else (low, middle)
    weight, power = exp(-shift / 2), 0.0
    for extra in range(1000):
        power += weight * tail(high, degrees + 2 * extra)
        weight *= shift / 2 / (extra + 1)
    return min(power, 1.0)


def summarise_match(checks: dict[str, Any]) -> dict[str, Any]:
    """Of outputs that plain decoding draws token for token, for `summary.json`."""
    return {"rule": "match", "consistent": checks["lossless"], **{k: v for k, v in checks.items() if k != "lossless"}}
