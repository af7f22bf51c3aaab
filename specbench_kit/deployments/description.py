"""A deployment written to `run.json` and read from it: every number that decides its time and its price.

Times that are derived have a range, and `corners` yields the deployment at its ends.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from itertools import product
from typing import Any, Literal, TypeVar

from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import JsonValue, Written, convert
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, LeapModel, TableModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.profilers import base
from specbench_kit.runs.deployment import (
    DeploymentDescription,
    DeploymentOf,
    EndpointDescription,
    EndpointOf,
    LatencyDescription,
)
from specbench_kit.runs.document import RunFields

D = TypeVar("D")
E = TypeVar("E")
L = TypeVar("L")
MODELS: Mapping[str, type[LatencyModel]] = {
    **base.MODELS,
    "leaps": LeapModel,
    "kernels": KernelModel,
}
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {
    **{form: names for form, names in base.COEFFICIENTS.items() if form in base.MODELS},
    "leaps": ("forward_s", "leap_s", "tile"),
}
"""The coefficients of each form that a deployment may hold itself; kernels come by a profile
alone.
"""


DIGITS = 12
TIMED = ("latency", "stages", "hand_over", "speculating")
"""The parts of an endpoint that its time depends on."""
STORED_MODELS: Mapping[str, type[LatencyModel]] = {**MODELS, "table": TableModel}
"""The latency models by the form that `run.json` names."""
OPTIONAL = ("range", "speculating", "speculating_range")
ENDPOINTS = ("drafter", "verifier", "colocated")
_FORMS = {model: form for form, model in STORED_MODELS.items()}


def describe(deployment: Deployment) -> Written:
    """Return the content of `deployment` in `run.json`; a bandwidth of null is unlimited."""
    content: dict[str, Any] = to_builtins(described(deployment))
    # What a deployment does not have is left out, as older files, which know nothing of it, do.
    endpoints = [content[role] for role in ENDPOINTS if content[role] is not None]
    optional = [(endpoint, name) for endpoint in endpoints for name in OPTIONAL]
    for table, name in (*optional, (content, "colocated")):
        if table[name] is None:
            del table[name]
    return content


def described(deployment: Deployment) -> DeploymentDescription:
    """Return a deployment as it is read from `run.json`."""
    return _with_endpoints(DeploymentDescription, deployment, _endpoint_description)


def restore(described: Written | DeploymentDescription) -> Deployment:
    """Return the deployment with every number that decides its time and its price; nothing is read
    from this machine.

    Raise SkitError if the description is damaged.
    """
    try:
        if not isinstance(described, DeploymentDescription):
            described = convert(DeploymentDescription, described)
        return _with_endpoints(Deployment, described, _endpoint)
    except ValueError as error:
        raise SkitError(
            f"the deployment in run.json is damaged: {error}; run the benchmark again"
        ) from error


def _with_endpoints(
    kind: Callable[..., D], deployment: DeploymentOf[E], endpoint: Callable[[E], object]
) -> D:
    """Return a deployment of another kind with the same fields, and endpoints of its kind."""
    return kind(
        **{
            **_values(deployment),
            "drafter": endpoint(deployment.drafter),
            "verifier": endpoint(deployment.verifier),
            "colocated": deployment.colocated and endpoint(deployment.colocated),
        }
    )


def _with_latencies(
    kind: Callable[..., D], endpoint: EndpointOf[L], latency: Callable[[L], object]
) -> D:
    """Return an endpoint of another kind with the same fields, and latency models of its kind."""
    ends, busy = endpoint.range, endpoint.speculating_range
    return kind(
        **{
            **_values(endpoint),
            "latency": latency(endpoint.latency),
            "range": ends and tuple(map(latency, ends)),
            "speculating": None if endpoint.speculating is None else latency(endpoint.speculating),
            "speculating_range": busy and tuple(map(latency, busy)),
        }
    )


def _values(record: DeploymentOf[E] | EndpointOf[L]) -> OptionValues:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _endpoint(described: EndpointDescription) -> Endpoint:
    return _with_latencies(Endpoint, described, restore_latency)


def _endpoint_description(endpoint: Endpoint) -> EndpointDescription:
    return _with_latencies(EndpointDescription, endpoint, _latency)


class _StoredLatency(Struct):
    form: Literal[
        "interactions", "context", "work", "served", "rounded", "kernels", "leaps", "table"
    ]


def restore_latency(described: LatencyDescription) -> LatencyModel:
    """Return the latency model that an endpoint's field `latency` describes."""
    model = STORED_MODELS[convert(_StoredLatency, described).form]
    return convert(model, described)


def _latency(model: LatencyModel) -> LatencyDescription:
    return {"form": _FORMS[type(model)], **to_builtins(model)}


def describe_time(deployment: Deployment | None) -> RunFields:
    """Return what `run.json` says of time: that it was measured here, or the deployment that it was
    modelled for.
    """
    if deployment is None:
        return {"time_kind": "measured"}
    return {"time_kind": "modelled", "deployment": describe(deployment)}


def digest(deployment: Deployment) -> str:
    """Return the start of a SHA-256 of every number that a deployment's time depends on.

    It tells deployments of one name apart. Fields that are zero or null are left out, so that the
    digest of a deployment stays the same when later versions describe it with more fields.
    """
    content = describe(deployment)
    numbers = {
        "drafter": _fields(content["drafter"], TIMED),
        "verifier": _fields(content["verifier"], TIMED),
        "link": {**to_builtins(deployment.link), "seed": None},
        **_fields(content, ("placement", "predictor_s")),
    }
    return sha256(json.dumps(_without_zeros(numbers), sort_keys=True).encode()).hexdigest()[:DIGITS]


def _fields(content: JsonValue, names: Iterable[str]) -> Written:
    return {name: content.get(name) for name in names} if isinstance(content, Mapping) else {}


def _without_zeros(value: object) -> object:
    """Return a JSON value without the fields, at any depth, that are zero or null."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_zeros(field) for name, field in value.items() if field}


ENDS = ("fast", "slow")
DECIDED_ANEW = "anew"
AS_DRAFTED = "as drafted"
"""Whether a method decided anew at each end of a range, or its rounds were timed there as they were
drafted.
"""


def describe_range(ends: Iterable[str], decisions: str) -> RunFields:
    """Return what `run.json` says of the range of derived times: the names of its ends, in the
    order of records.
    """
    names = list(ends)
    return {"range": {"ends": names, "decisions": decisions}} if names else {}


def corners(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield the deployment with its drafter and its verifier at either end of their ranges; nothing
    without a range.

    Both ends of both devices are combined, since a fast drafter beside a slow verifier favours
    other policies than two fast devices.
    """
    drafters, verifiers = (
        list(_ends(endpoint)) for endpoint in (deployment.drafter, deployment.verifier)
    )
    if len(drafters) == len(verifiers) == 1:
        return
    for (drafter_end, drafter), (verifier_end, verifier) in product(drafters, verifiers):
        named = [
            f"{end} {role}"
            for end, role in ((drafter_end, "drafter"), (verifier_end, "verifier"))
            if end
        ]
        colocated = deployment.colocated and _at(deployment.colocated, drafter_end)
        yield (
            ", ".join(named),
            replace(deployment, drafter=drafter, verifier=verifier, colocated=colocated),
        )


def _ends(endpoint: Endpoint) -> Iterator[tuple[str, Endpoint]]:
    if endpoint.range is None:
        yield "", endpoint
        return
    for end in ENDS:
        yield end, _at(endpoint, end)


def _at(endpoint: Endpoint, end: str) -> Endpoint:
    """Return an endpoint at one end of its range, or as it is if it has none."""
    if endpoint.range is None or not end:
        return endpoint
    number = ENDS.index(end)
    both = endpoint.speculating_range
    return replace(
        endpoint,
        latency=endpoint.range[number],
        speculating=both[number] if both else endpoint.speculating,
    )
