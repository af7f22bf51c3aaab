"""Tests of sampled outputs: do acceptance and tokens follow the two models' distributions?

What is accepted is tested under the residual rule alone, whose chances follow from the two
distributions before each token. Under every lossless rule committed tokens follow the target's
distribution, whatever was drafted.
"""

from dataclasses import dataclass, field
from math import erfc, exp, sqrt
from statistics import NormalDist

import torch
from msgspec import structs
from torch import Tensor

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.losslessness import LosslessCounts
from specbench_kit.metrics.run_summary import SamplingCheck, SamplingTest

LEVEL = 0.001
"""Probability with which the three tests together call a correct rule wrong."""
EACH = LEVEL / 3
WANTED_POWER = 0.8
"""A run that would detect one of the two faults with a lower probability is left undecided."""
RATIOS = (0.5, 1.0, 2.0)
"""Bounds of the classes of tokens by target probability / draft probability."""
ENOUGH = 5.0
"""Least expected number of tokens in a class."""
RESIDUAL = "residual"
STRAY = 0.1
"""The fault that power is stated for where tokens alone are tested: this share of them comes from
the draft model.
"""
WEAKER = 0.8
"""The first fault that power is stated for: acceptance with probability min(1, p/q) to this
power.
"""


def _class_zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@dataclass
class SamplingTally:
    """Sums over all judged drafted tokens (`judged` of them), and over all committed tokens.

    `accepted` is compared with `expected`, the sum of 1 - total variation, and its `variance`; `surplus` is the number
    of committed tokens in each class less what the target's distribution expects, with its `covariance`. `softness`
    sums the score of the first fault, which is 0 on average: the relative change that the fault makes to the
    probability of what happened, an accepted token or a rejection. `softened` and `unmended` are the shifts of
    `accepted` and `surplus` under the two faults: the first, and a bonus token drawn from p instead of max(0, p - q).
    `stray` is that of `surplus` if some tokens come from the draft model. Another `rule` than the residual one judges
    no drafted token.
    """

    rule: str = RESIDUAL
    judged: int = 0
    tokens: int = 0
    accepted: int = 0
    expected: float = 0.0
    variance: float = 0.0
    softened: float = 0.0
    softness: float = 0.0
    softness_variance: float = 0.0
    surplus: Tensor = field(default_factory=lambda: _class_zeros(len(RATIOS) + 1))
    counts: Tensor = field(default_factory=lambda: _class_zeros(len(RATIOS) + 1))
    covariance: Tensor = field(
        default_factory=lambda: _class_zeros(len(RATIOS) + 1, len(RATIOS) + 1)
    )
    unmended: Tensor = field(default_factory=lambda: _class_zeros(len(RATIOS) + 1))
    stray: Tensor = field(default_factory=lambda: _class_zeros(len(RATIOS) + 1))

    def add(self, record: RequestRecord, target: Tensor, draft: Tensor) -> None:
        """Add one output, with both models' distributions before each of its tokens, each [tokens,
        vocabulary].
        """
        start = record.forced_first
        for step in record.rounds:
            for offset in range(min(step.accepted + 1, len(record.output_ids) - start)):
                token = record.output_ids[start + offset]
                row = _DistributionPair(
                    target[start + offset].double(), draft[start + offset].double()
                )
                self._add_token(row, token)
                if offset < step.submitted and self.rule == RESIDUAL:
                    self._add_judged(row, token if offset < step.accepted else None)
            start += step.committed + step.forced

    def _add_token(self, row: "_DistributionPair", token: int) -> None:
        mass = row.by_class(row.target)
        self.tokens += 1
        self.counts += mass
        self.surplus -= mass
        self.surplus[row.classes[token]] += 1
        self.covariance += mass.diag() - mass.outer(mass)
        self.stray += STRAY * (row.by_class(row.draft) - mass)

    def _add_judged(self, row: "_DistributionPair", token: int | None) -> None:
        """Add one judged token, None if it was rejected."""
        chance = float(row.overlap.sum())
        self.judged += 1
        self.accepted += token is not None
        self.expected += chance
        self.variance += chance * (1 - chance)
        ratio = (row.overlap / row.draft).nan_to_num(1.0)
        softened = float((row.draft * ratio**WEAKER).sum()) - chance
        self.softened += softened
        if chance < 1:
            gain = torch.where(row.overlap > 0, ratio ** (WEAKER - 1) - 1, 0.0)
            loss = -softened / (1 - chance)
            self.softness += loss if token is None else float(gain[token])
            self.softness_variance += float((row.overlap * gain**2).sum()) + (1 - chance) * loss**2
        self.unmended += (1 - chance) * row.by_class(row.target) - row.by_class(
            row.target - row.overlap
        )


class _DistributionPair:
    """The two distributions before one token, and each token's class."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        self.target = target
        self.draft = draft
        self.overlap = torch.minimum(target, draft)
        bounds = torch.tensor(RATIOS, dtype=torch.float64, device=target.device)
        self.classes = torch.bucketize(target / draft.clamp(min=1e-300), bounds, right=True)

    def by_class(self, values: Tensor) -> Tensor:
        """Return the sums [classes] of values [vocabulary]."""
        return torch.bincount(self.classes, values, len(RATIOS) + 1).cpu()


def summarise_tally(tally: SamplingTally, *, lossy: bool = False) -> SamplingCheck:
    """Return all tests with their power; `consistent` is None if too little was drawn to tell."""
    acceptance = softness = None
    if tally.rule == RESIDUAL:
        acceptance, softness = _acceptance_test(tally), _softness_test(tally)
    tokens = _token_test(tally, tally.unmended if tally.rule == RESIDUAL else tally.stray)
    tests = [test for test in (acceptance, softness, tokens) if test is not None]
    wrong = any(test.p_value < EACH for test in tests if test.p_value is not None)
    strong = all(
        (test.power or 0.0) >= WANTED_POWER for test in (softness, tokens) if test is not None
    )
    consistent = False if wrong else True if strong else None
    return SamplingCheck(
        rule=tally.rule,
        consistent=consistent,
        level=LEVEL,
        acceptance=acceptance,
        softness=softness,
        tokens=tokens,
        lossy=lossy,
    )


def _acceptance_test(tally: SamplingTally) -> SamplingTest:
    """Compare the accepted tokens with the sum of 1 - total variation; the difference is a
    martingale, so normal.
    """
    spread = sqrt(tally.variance)
    difference = tally.accepted - tally.expected
    return SamplingTest(
        places=tally.judged,
        rate=tally.accepted / tally.judged if tally.judged else None,
        expected_rate=tally.expected / tally.judged if tally.judged else None,
        p_value=erfc(abs(difference) / spread / sqrt(2)) if spread > 0 else None,
        power=_normal_power(abs(tally.softened) / spread) if spread > 0 else None,
    )


def _softness_test(tally: SamplingTally) -> SamplingTest:
    """Test which drafted tokens were accepted, by the score of the first fault: the most powerful
    test against it.
    """
    spread = sqrt(tally.softness_variance)
    return SamplingTest(
        places=tally.judged,
        score=tally.softness / spread if spread else None,
        p_value=erfc(abs(tally.softness) / spread / sqrt(2)) if spread else None,
        power=_normal_power(spread) if spread else None,
    )


def _token_test(tally: SamplingTally, fault: Tensor) -> SamplingTest:
    """Compare committed tokens by class with the target's distribution, by chi-square; power is
    against a fault.
    """
    large = (tally.counts >= ENOUGH).nonzero()[:, 0]
    covariance = tally.covariance[large][:, large]
    degrees = (
        min(int(torch.linalg.matrix_rank(covariance, hermitian=True)), len(RATIOS))
        if len(large) > 1
        else 0
    )
    inverse = torch.linalg.pinv(covariance, hermitian=True)
    statistic, shift = (
        float(sums[large] @ inverse @ sums[large]) for sums in (tally.surplus, fault)
    )
    return SamplingTest(
        drawn=tally.tokens,
        classes=len(large),
        degrees=degrees,
        chi_square=statistic if degrees else None,
        p_value=tail(statistic, degrees) if degrees else None,
        power=_chi_square_power(shift, degrees) if degrees else None,
    )


def tail(statistic: float, degrees: int) -> float:
    """Return the probability that a chi-square of these degrees of freedom is at least
    `statistic`.
    """
    halves = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _normal_power(shift: float) -> float:
    edge = NormalDist().inv_cdf(1 - EACH / 2)
    return NormalDist().cdf(shift - edge) + NormalDist().cdf(-shift - edge)


def _chi_square_power(shift: float, degrees: int) -> float:
    if shift > 500:
        return 1.0
    # Bisection for the statistic at which the test rejects.
    low = 0.0
    high = 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degrees) > EACH else (low, middle)
    # A non-central chi-square is a Poisson mixture of central ones.
    weight = exp(-shift / 2)
    power = 0.0
    for extra in range(1000):
        power += weight * tail(high, degrees + 2 * extra)
        weight *= shift / 2 / (extra + 1)
    return min(power, 1.0)


def summarise_match(checks: LosslessCounts) -> SamplingCheck:
    """Return the check of outputs that plain decoding draws token for token."""
    counts = {name: value for name, value in structs.asdict(checks).items() if name != "lossless"}
    return SamplingCheck(rule="match", consistent=checks.lossless, **counts)
