"""The one rule by which every stop rule gets its threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors import scoring
from specbench_kit.predictors.scoring import Labels, Scores

CANDIDATES = 50
"""Thresholds that are tried for the greatest speed, with every longest draft."""

Choice = tuple[float, int]
"""A threshold, and how many tokens are drafted at most."""


class Speeds(Protocol):
    """Tokens per second of several thresholds with one longest draft."""

    def __call__(self, thresholds: Sequence[float], longest: int) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """`throughput`: most committed tokens per second; `fpr`: most recall within a rate; `balanced`: by accuracy.

    The first chooses the longest draft too; accuracy says nothing about it, so that the others leave it as it is.
    """

    rule: Literal["throughput", "fpr", "balanced"] = "throughput"
    target: float = 0.0

    def __str__(self) -> str:
        return f"fpr={self.target:g}" if self.rule == "fpr" else self.rule

    def choose(self, labels: Labels, scores: Scores, max_draft: int, speeds: Speeds) -> Choice:
        """For scores of validation examples."""
        if self.rule == "fpr":
            return scoring.by_fpr(labels, scores, self.target), max_draft
        if self.rule == "balanced":
            return scoring.by_balanced_accuracy(labels, scores), max_draft
        return _fastest(scoring.candidate_thresholds(scores, CANDIDATES), max_draft, speeds)

    @property
    def sentence(self) -> str:
        """The rule in words."""
        return {
            "throughput": "thresholds and longest drafts by the most committed tokens per modelled second",
            "fpr": f"thresholds by the most recall at a false positive rate of at most {self.target:g}",
            "balanced": "thresholds by the highest balanced accuracy",
        }[self.rule] + ", on the validation prompts"


def _fastest(candidates: Sequence[float], max_draft: int, speeds: Speeds) -> Choice:
    """The fastest choice, of equals that with the shorter draft."""
    best: dict[Choice, float] = {}
    for longest in range(1, max_draft + 1):
        found = dict(zip(candidates, speeds(candidates, longest), strict=True))
        threshold, value = scoring.choose_threshold(candidates, found.__getitem__)
        best[threshold, longest] = value
    return max(best, key=best.__getitem__)


def parse_operating_point(text: str) -> OperatingPoint:
    """`throughput`, `fpr=RATE` or `balanced`."""
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
    raise SkitError(f"unknown operating point '{text}': use throughput, balanced, or fpr=RATE with a rate in 0..1")
