"""Reads a deployment from `run.json`: the inverse of `description.describe`."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, convert
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.base import Deployment, Endpoint, HandOver, Link, Placement
from specbench_kit.deployments.description import STORED_MODELS

Numbers = dict[str, int | float | None]


class _StoredLatency(Struct):
    form: Literal["interactions", "context", "work", "served", "rounded", "kernels", "leaps", "table"]


class _StoredEndpoint(Struct):
    device: str
    price_per_hour: float
    stages: int
    origin: str
    latency: dict[str, object]
    hand_over: Numbers
    power_w: float = 0.0
    range: tuple[dict[str, object], dict[str, object]] | None = None

    def endpoint(self) -> Endpoint:
        """Return the endpoint that is described."""
        return Endpoint(
            device=self.device,
            latency=_latency(self.latency),
            price_per_hour=self.price_per_hour,
            stages=self.stages,
            origin=self.origin,
            hand_over=convert(HandOver, _limited(self.hand_over)),
            power_w=self.power_w,
            range=(_latency(self.range[0]), _latency(self.range[1])) if self.range else None,
        )


def _latency(described: Mapping[str, object]) -> LatencyModel:
    model = STORED_MODELS[convert(_StoredLatency, described).form]
    return convert(model, described)


class _StoredDeployment(Struct):
    name: str
    description: str
    source: str
    placement: Placement
    predictor_s: float | None
    cached_prompts: bool
    drafter: _StoredEndpoint
    verifier: _StoredEndpoint
    link: Numbers
    predictor_origin: str = ""
    colocated: _StoredEndpoint | None = None


def restore(described: JsonObject) -> Deployment:
    """Return the deployment with every number that decides its time and its price; nothing is read from this machine.

    Raise SkitError if the description is damaged.
    """
    try:
        stored = convert(_StoredDeployment, described)
        return Deployment(
            name=stored.name,
            drafter=stored.drafter.endpoint(),
            verifier=stored.verifier.endpoint(),
            link=convert(Link, _limited(stored.link)),
            placement=stored.placement,
            predictor_s=stored.predictor_s,
            cached_prompts=stored.cached_prompts,
            description=stored.description,
            source=stored.source,
            predictor_origin=stored.predictor_origin,
            colocated=stored.colocated.endpoint() if stored.colocated else None,
        )
    except ValueError as error:
        raise SkitError(f"the deployment in run.json is damaged: {error}; run the benchmark again") from error


def _limited(numbers: Numbers) -> Numbers:
    """Return the numbers without null, which stands for unlimited, as the defaults of these fields do."""
    return {name: value for name, value in numbers.items() if value is not None}
