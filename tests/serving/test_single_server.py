"""A single server does what it did before there were pools: counts and checksums that were recorded then."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scenes import scenario

from specbench_kit.serving.arrivals import Poisson
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.network import Network
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.simulation import simulate

RECORDED = Path(__file__).with_name("single_server.json")
NETWORK = Network(
    frame_s=0.002, turn_s=0.004, turn_answer_s=0.001, answer_s=0.0001, shared_up_bytes_per_s=4000.0
)
SCENES: dict[str, Callable[[], Scenario]] = {
    "wisp": lambda: scenario("wisp", 60),
    "sled": lambda: scenario("sled", 60),
    "specedge": lambda: scenario("specedge", 40),
    "centralized": lambda: scenario("centralized", 60, arrivals=Poisson(3.0)),
    "chunked": lambda: scenario("centralized", 60, scheduler="chunked"),
    "little memory": lambda: scenario("wisp", 60, memory=KvCapacity(1500), arrivals=Poisson(2.0)),
    "least recently used": lambda: scenario(
        "wisp", 60, memory=KvCapacity(1500, lru=True), arrivals=Poisson(2.0)
    ),
    "scatter": lambda: scenario(
        "wisp", 60, estimator=EstimatorError(1.2, 0.3), verify_cv=0.3, max_batch=7
    ),
    "network": lambda: scenario("wisp", 60, network=NETWORK),
}


def figures(result: SimulationResult) -> dict[str, float]:
    """Return counts, and per column the sum of its finite values, weighted by their place so that order counts."""
    sums: dict[str, float] = {
        name: getattr(result, name)
        for name in ("refusals", "idle_waiting_s", "evictions", "peak_kv_tokens", "events")
    }
    for table in ("rounds", "responses", "batches"):
        for name, column in getattr(result, table).items():
            finite = np.isfinite(column)
            weights = (np.arange(len(column)) + 1) / len(column)
            sums[f"{table}.{name}"] = float((column[finite] * weights[finite]).sum())
        sums[table] = len(column)
    return sums


@pytest.mark.parametrize("name", SCENES)
def test_a_single_server_is_as_it_was(name: str) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert figures(simulate(SCENES[name](), 3)) == pytest.approx(recorded[name], rel=1e-9, abs=1e-9)
