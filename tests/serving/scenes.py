"""Small scenarios with simple latencies, whose figures can be worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

DRAFT = InteractionModel(a_s=1e-4, b_compute_s=1e-8, b_read_s=1e-7, c_s=9e-3)
VERIFY = InteractionModel(a_s=4e-5, b_compute_s=2e-8, b_read_s=4e-6, c_s=15e-3)
LINK = Link(rtt_s=0.02, jitter_s=0.004, up_bytes_per_s=1e5, down_bytes_per_s=2e5)
DEPLOYMENT = Deployment("scene", Endpoint("edge", DRAFT), Endpoint("server", VERIFY), LINK)
MIX = "1:0.25,2:0.25,3:0.25,4:0.25"


def scenario(system: str = "wisp", devices: int = 20, **changes: Any) -> Scenario:
    """Return devices in closed loops over half a minute; `slo` is given as on the command line."""
    plain: dict[str, Any] = {
        "source": iid(0.7, 4),
        "slo": MIX,
        "prompt_tokens": 60,
        "output_tokens": 40,
        "duration_s": 40.0,
        "warmup_s": 5.0,
    }
    options = {**plain, **changes}
    options["slo"] = parse_slo(options["slo"])
    return Scenario(
        options.pop("deployment", DEPLOYMENT), systems.get(system), devices=devices, **options
    )


def calm(deployment: Deployment = DEPLOYMENT) -> Deployment:
    """Return the deployment without jitter."""
    return replace(deployment, link=replace(deployment.link, jitter_s=0.0))


def equal_results(first: SimulationResult, second: SimulationResult) -> bool:
    """Return True if every number is the same."""
    counters = ("end_s", "refusals", "idle_waiting_s", "evictions", "peak_kv_tokens", "events")
    return all(getattr(first, name) == getattr(second, name) for name in counters) and all(
        np.array_equal(column, getattr(second, table)[name])
        for table in ("rounds", "responses", "batches")
        for name, column in getattr(first, table).items()
    )
