"""Reads a deployment from `run.json`: the inverse of `description.describe`."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, convert
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.base import Deployment, Endpoint, Link
from specbench_kit.deployments.description import STORED_MODELS
from specbench_kit.runs.document import (
    DeploymentDescription,
    EndpointDescription,
    LinkDescription,
)


class _StoredLatency(Struct):
    form: Literal[
        "interactions", "context", "work", "served", "rounded", "kernels", "leaps", "table"
    ]


def restore_latency(described: Mapping[str, object]) -> LatencyModel:
    """Return the latency model that an endpoint's field `latency` describes."""
    model = STORED_MODELS[convert(_StoredLatency, described).form]
    return convert(model, described)


def restore(described: JsonObject | DeploymentDescription) -> Deployment:
    """Return the deployment with every number that decides its time and its price; nothing is read
    from this machine.

    Raise SkitError if the description is damaged.
    """
    try:
        stored = convert(DeploymentDescription, described)
        return Deployment(
            name=stored.name,
            drafter=_endpoint(stored.drafter),
            verifier=_endpoint(stored.verifier),
            link=convert(Link, _limited(stored.link)),
            placement=stored.placement,
            predictor_s=stored.predictor_s,
            cached_prompts=stored.cached_prompts,
            description=stored.description,
            source=stored.source,
            predictor_origin=stored.predictor_origin,
            colocated=_endpoint(stored.colocated) if stored.colocated else None,
        )
    except ValueError as error:
        raise SkitError(
            f"the deployment in run.json is damaged: {error}; run the benchmark again"
        ) from error


def _endpoint(described: EndpointDescription) -> Endpoint:
    return Endpoint(
        device=described.device,
        latency=restore_latency(described.latency),
        price_per_hour=described.price_per_hour,
        stages=described.stages,
        origin=described.origin,
        hand_over=described.hand_over,
        power_w=described.power_w,
        range=(restore_latency(described.range[0]), restore_latency(described.range[1]))
        if described.range
        else None,
        speculating=restore_latency(described.speculating) if described.speculating else None,
        speculating_range=(
            restore_latency(described.speculating_range[0]),
            restore_latency(described.speculating_range[1]),
        )
        if described.speculating_range
        else None,
    )


def _limited(link: LinkDescription) -> dict[str, float]:
    """Return the numbers without null, which stands for unlimited, as the defaults of these
    bandwidths do.
    """
    return {name: value for name, value in structs.asdict(link).items() if value is not None}
