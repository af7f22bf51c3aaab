"""A log's load, simulated on a server whose steps take what a latency model says, and how far both are apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.arrivals import RequestArrival, from_zero
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.calibration.logs import LoggedRequest

TAIL = 0.95
SPARE_S = 600.0
"""Seconds beyond the last arrival that a simulation may take; a server that is slower still cannot carry the load."""
Times = Mapping[str, Floats]
"""Seconds of every request, by the name of the metric."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of the engine that wrote a log: requests in a batch, tokens of a step, and memory for KV."""

    max_batch: int
    batch_tokens: int
    memory: KvCapacity


@dataclass(frozen=True)
class ServedLog:
    """The requests of a log, and the engine that served them."""

    requests: Sequence[LoggedRequest]
    engine: EngineSettings

    @cached_property
    def measured(self) -> Times:
        """The measured times of every request."""
        at_s, first_s, last_s, _, tokens = np.array(self.requests, dtype=np.float64).T
        return _times(at_s, first_s, last_s, tokens)

    def during_first(self, count: int) -> "ServedLog":
        """Return the log of its first requests and of all that came before these had finished, which slow them down."""
        end_s = max(request.last_s for request in self.requests[:count])
        return ServedLog([request for request in self.requests if request.at_s <= end_s], self.engine)

    def simulated(self, latency: LatencyModel) -> Times:
        """Return the times of every request on a server whose steps take what `latency` says."""
        endpoint = Endpoint("the log's device", latency)
        arrivals = from_zero(
            [RequestArrival(request.at_s, request.prompt_tokens, request.output_tokens) for request in self.requests]
        )
        scenario = Scenario(
            Deployment("the log's server", endpoint, endpoint),
            systems.get("centralized"),
            iid(0.8, 4),  # which nothing drafts by
            len(self.requests),
            slo=parse_slo("0.001/s"),
            arrivals=arrivals,
            memory=self.engine.memory,
            scheduler=f"chunked:tokens={self.engine.batch_tokens}",
            max_batch=self.engine.max_batch,
            duration_s=self.requests[-1].at_s + SPARE_S,
            warmup_s=0.0,
            require_attainable_slo=False,
        )
        table = simulate(scenario).responses
        order = np.argsort(table["client"])
        if len(order) < len(self.requests):
            slow = np.full(len(self.requests), SPARE_S)
            return {"TTFT": slow, "TPOT": slow, "latency": slow}
        return _times(*(table[name][order] for name in ("start_s", "first_s", "end_s", "tokens")))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Simulated over measured times of one metric: of the means, and of the 95th percentiles."""

    metric: str
    mean: float
    tail: float


def agreement(simulated: Times, measured: Times, part: slice) -> list[Agreement]:
    """Return how simulated times compare with measured ones, over a part of the requests."""
    return [
        Agreement(
            name,
            float(simulated[name][part].mean() / values[part].mean()),
            float(np.quantile(simulated[name][part], TAIL) / np.quantile(values[part], TAIL)),
        )
        for name, values in measured.items()
    ]


def _times(arrived_s: Floats, first_s: Floats, last_s: Floats, tokens: Floats) -> Times:
    return {
        "TTFT": first_s - arrived_s,
        "TPOT": (last_s - first_s) / np.maximum(tokens - 1, 1),
        "latency": last_s - arrived_s,
    }
