"""The rule by which every stop rule gets its threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors import scoring
from specbench_kit.predictors.scoring import Labels, Scores

CANDIDATES = 50
"""Thresholds that are tried for the highest speed, each with every longest draft."""

ThresholdChoice = tuple[float, int]
"""A threshold, and the longest draft in tokens."""


class Speeds(Protocol):
    """Returns the tokens per second of several thresholds with one longest draft."""

    def __call__(self, thresholds: Sequence[float], longest: int) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The goal of a threshold.

    `throughput` is the most committed tokens per second, `fpr` the most recall with a false positive rate of at most
    `target`, `balanced` the highest balanced accuracy. Only the first depends on the longest draft, and chooses it.
    """

    rule: Literal["throughput", "fpr", "balanced"] = "throughput"
    target: float = 0.0

    def __str__(self) -> str:
        return f"fpr={self.target:g}" if self.rule == "fpr" else self.rule

    def choose(
        self, labels: Labels, scores: Scores, max_draft: int, speeds: Speeds
    ) -> ThresholdChoice:
        """Return threshold and longest draft for the scores of validation examples.

        Of equally fast choices, the one with the shortest draft wins.
        """
        if self.rule == "fpr":
            return scoring.by_fpr(labels, scores, self.target), max_draft
        if self.rule == "balanced":
            return scoring.by_balanced_accuracy(labels, scores), max_draft
        candidates = scoring.candidate_thresholds(scores, CANDIDATES)
        best: dict[ThresholdChoice, float] = {}
        for longest in range(1, max_draft + 1):
            speed_of = dict(zip(candidates, speeds(candidates, longest), strict=True))
            threshold, speed = scoring.choose_threshold(candidates, speed_of.__getitem__)
            best[threshold, longest] = speed
        return max(best, key=best.__getitem__)

    @property
    def sentence(self) -> str:
        """Return the rule in words."""
        return {
            "throughput": "thresholds and longest drafts by the most committed tokens per modelled second",
            "fpr": f"thresholds by the most recall at a false positive rate of at most {self.target:g}",
            "balanced": "thresholds by the highest balanced accuracy",
        }[self.rule] + ", on the validation prompts"


def parse_operating_point(text: str) -> OperatingPoint:
    """Return the operating point that `throughput`, `fpr=RATE` or `balanced` names."""
    name, _, value = text.partition("=")
    if text == "throughput":
        return OperatingPoint("throughput")
    if text == "balanced":
        return OperatingPoint("balanced")
    try:
        if name == "fpr" and 0 <= (rate := float(value)) <= 1:
            return OperatingPoint("fpr", rate)
    except ValueError:
        pass
    raise SkitError(
        f"unknown operating point '{text}': use throughput, balanced, or fpr=RATE with a rate in 0..1"
    )
