"""AdaSpec (2025): published numbers, for comparison only."""

from typing import NamedTuple


class AblationRow(NamedTuple):
    """Average tokens per request and round."""

    drafted: float
    accepted: float

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted


ABLATION = {
    "threshold:unit=batch,threshold=0.6,max_draft=8": AblationRow(drafted=5.97, accepted=1.41),
    "adaspec:elimination=false": AblationRow(drafted=3.42, accepted=1.20),
    "adaspec": AblationRow(drafted=2.96, accepted=1.14),
}
"""Table 2, by the method that its row stands for; the rates that the paper prints follow from these averages."""
