"""AdaSpec's Table 2 (its ablation), read from the experiment `adaspec/table-2`."""

from typing import NamedTuple

from msgspec import Struct

from specbench_kit.core.typed_json import convert
from specbench_kit.papers.experiment import experiments, series_of


class RowAverages(Struct):
    """What a series of the experiment is computed from: average tokens per request and round."""

    drafted: float
    accepted: float


class AblationRow(NamedTuple):
    """Average drafted and accepted tokens per request and round, and the speedup over
    autoregressive decoding.
    """

    drafted: float
    accepted: float
    speedup: float

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that is accepted."""
        return self.accepted / self.drafted


METHODS = {
    "threshold": "threshold:unit=batch,threshold=0.6,max_draft=8",
    "AdaSpec-": "adaspec:elimination=false",
    "AdaSpec": "adaspec",
}
"""Method specs by the row of Table 2 that they reproduce. The paper does not give the value of the
threshold.
"""


def ablation() -> dict[int, dict[str, AblationRow]]:
    """Return Table 2 by arrival trace and method spec."""
    experiment = experiments()["adaspec/table-2"]
    speedups = {number.series: number.value for number in experiment.published}
    table: dict[int, dict[str, AblationRow]] = {1: {}, 2: {}, 3: {}}
    for trace, rows in table.items():
        for name, method in METHODS.items():
            series = f"{name}, trace {trace}"
            averages = convert(RowAverages, series_of(experiment.options)[series])
            speedup = speedups[series]
            assert speedup is not None
            rows[method] = AblationRow(averages.drafted, averages.accepted, speedup)
    return table
