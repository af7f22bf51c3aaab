"""WISP (Li et al. 2025): published numbers, for comparison only."""

from typing import NamedTuple

from specbench_kit.predictors.confusion import Confusion


class DataSet(NamedTuple):
    """Drafted tokens, and how many of them the target accepted."""

    tokens: int
    accepted: int

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.tokens


DATA_SET = DataSet(tokens=17_510, accepted=12_820)
"""Table 8; the MLP's test tokens alone are accepted at .7787."""

MLP_CONFUSION = Confusion(true_negatives=92, false_positives=68, false_negatives=112, true_positives=451)
"""The MLP's test tokens, "positive" meaning accepted; the paper rounds the rates that follow from these counts."""

CAPACITY = {
    "wisp": (164, 142, 103, 86),
    "centralized": (97, 80, 54, 41),
    "sled": (83, 42, 27, 21),
}
"""Devices that Qwen3-32B on one A100 serves in class 1, 2, 3 and 4."""
CAPACITY_14B = {
    "wisp": (245, 223, 194, 154),
    "centralized": (198, 165, 109, 86),
    "sled": (119, 88, 71, 52),
}
"""The same of Qwen3-14B."""
THROUGHPUT = {"wisp": 631.86, "centralized": 326.12, "sled": 170.82}
"""Tokens per second."""
VIOLATIONS = {"fcfs": (0.0, 0.3645, 0.9415, 0.9835), "wisp": (0.0, 0.1080, 0.8210, 0.9827)}
"""Shares of responses in class 1, 2, 3 and 4 that break their SLO; the paper lists the classes in reverse."""
PREDICTOR_GAIN = {2: 0.2045, 4: 0.2514, 8: 0.2549, 16: 0.3003}
"""Throughput that the drafting predictor adds, by the number of devices."""
