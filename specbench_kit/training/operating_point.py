"""The one rule by which every stop rule gets its threshold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from specbench_kit.errors import SkitError
from specbench_kit.predictors import scoring
from specbench_kit.predictors.scoring import Labels, Scores

CANDIDATES = 100
"""Thresholds that are tried for the greatest speed."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """`throughput`: most committed tokens per second; `fpr`: most recall within a rate; `balanced`: by accuracy."""

    rule: Literal["throughput", "fpr", "balanced"] = "throughput"
    target: float = 0.0

    def __str__(self) -> str:
        return f"fpr={self.target:g}" if self.rule == "fpr" else self.rule

    def choose(self, labels: Labels, scores: Scores, speed: Callable[[float], float]) -> float:
        """The threshold for scores of validation examples; `speed` gives tokens per second at a threshold."""
        if self.rule == "fpr":
            return scoring.by_fpr(labels, scores, self.target)
        if self.rule == "balanced":
            return scoring.by_balanced_accuracy(labels, scores)
        return scoring.choose_threshold(scoring.candidate_thresholds(scores, CANDIDATES), speed)[0]

    @property
    def sentence(self) -> str:
        """The rule in words."""
        return {
            "throughput": "the most committed tokens per modelled second on the validation prompts",
            "fpr": f"the most recall at a false positive rate of at most {self.target:g} on the validation prompts",
            "balanced": "the highest balanced accuracy on the validation prompts",
        }[self.rule]


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
