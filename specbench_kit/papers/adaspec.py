"""AdaSpec (2025): published numbers, for comparison only."""

from typing import NamedTuple


class AblationRow(NamedTuple):
    """Average tokens per request and round, and how many times faster than plain decoding."""

    drafted: float
    accepted: float
    speedup: float

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted


METHODS = ("threshold:unit=batch,threshold=0.6,max_draft=8", "adaspec:elimination=false", "adaspec")
"""What the rows of Table 2 stand for: threshold-based, AdaSpec-, AdaSpec. The threshold is not given."""
_TABLE_2 = (
    ((5.97, 1.41, 1.16), (3.57, 1.22, 1.71), (3.42, 1.20, 1.73)),
    ((6.56, 1.42, 1.22), (3.13, 1.17, 1.40), (2.96, 1.14, 1.42)),
    ((5.26, 1.38, 1.66), (3.73, 1.26, 1.78), (3.63, 1.25, 1.79)),
)
ABLATION = {
    trace: {method: AblationRow(*row) for method, row in zip(METHODS, rows, strict=True)}
    for trace, rows in enumerate(_TABLE_2, 1)
}
"""Table 2, by arrival trace and method; the acceptance rates that the paper prints follow from these averages."""
