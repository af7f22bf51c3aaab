"""Counts of right and wrong predictions. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class Confusion:
    """The number of tokens by prediction (positive: accepted) and outcome."""

    true_negatives: Annotated[
        int, Meta(description="rejected tokens that are predicted to be rejected")
    ]
    false_positives: Annotated[
        int, Meta(description="rejected tokens that are predicted to be accepted")
    ]
    false_negatives: Annotated[
        int, Meta(description="accepted tokens that are predicted to be rejected")
    ]
    true_positives: Annotated[
        int, Meta(description="accepted tokens that are predicted to be accepted")
    ]

    @property
    def accuracy(self) -> float:
        """Return the share of all tokens that are predicted right."""
        total = (
            self.true_negatives + self.false_positives + self.false_negatives + self.true_positives
        )
        return (self.true_negatives + self.true_positives) / total

    @property
    def recall(self) -> float:
        """Return the share of the accepted tokens that are predicted accepted."""
        return self.true_positives / (self.true_positives + self.false_negatives)

    @property
    def specificity(self) -> float:
        """Return the share of the rejected tokens that are predicted rejected."""
        return self.true_negatives / (self.true_negatives + self.false_positives)

    @property
    def false_positive_rate(self) -> float:
        """Return the share of the rejected tokens that are predicted accepted."""
        return 1 - self.specificity

    @property
    def balanced_accuracy(self) -> float:
        """Return the mean of recall and specificity."""
        return (self.recall + self.specificity) / 2
