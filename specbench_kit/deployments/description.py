"""A deployment as `run.json` holds it: every number that decides its time and its price.

Times that are derived have a range, and `corners` yields the deployment at its ends.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import product
from math import isinf

from specbench_kit.core.typed_json import JsonObject, convert
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, LeapModel, TableModel
from specbench_kit.deployments.base import Deployment, Endpoint, Link
from specbench_kit.profilers import base
from specbench_kit.runs.document import DeploymentDescription

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
_FORMS = {model: form for form, model in STORED_MODELS.items()}


def describe(deployment: Deployment) -> JsonObject:
    """Return the content of `deployment` in `run.json`; a bandwidth of null is unlimited."""
    return {
        "name": deployment.name,
        "description": deployment.description,
        "source": deployment.source,
        "placement": deployment.placement,
        "predictor_s": deployment.predictor_s,
        "predictor_origin": deployment.predictor_origin,
        "cached_prompts": deployment.cached_prompts,
        "drafter": _endpoint(deployment.drafter),
        "verifier": _endpoint(deployment.verifier),
        "link": finite(deployment.link),
        **({"colocated": _endpoint(deployment.colocated)} if deployment.colocated else {}),
    }


def described(deployment: Deployment) -> DeploymentDescription:
    """Return a deployment as it is read from `run.json`."""
    return convert(DeploymentDescription, describe(deployment))


def describe_time(deployment: Deployment | None) -> dict[str, object]:
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
        "link": {**content["link"], "seed": None},
        **_fields(content, ("placement", "predictor_s")),
    }
    return sha256(json.dumps(_without_zeros(numbers), sort_keys=True).encode()).hexdigest()[:DIGITS]


def _fields(content: JsonObject, names: Iterable[str]) -> JsonObject:
    return {name: content.get(name) for name in names}


def _without_zeros(value: object) -> object:
    """Return a JSON value without the fields, at any depth, that are zero or null."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_zeros(field) for name, field in value.items() if field}


def _endpoint(endpoint: Endpoint) -> dict[str, object]:
    return {
        "device": endpoint.device,
        "price_per_hour": endpoint.price_per_hour,
        "power_w": endpoint.power_w,
        "stages": endpoint.stages,
        "origin": endpoint.origin,
        "latency": _latency(endpoint.latency),
        "hand_over": asdict(endpoint.hand_over),
        **({"range": list(map(_latency, endpoint.range))} if endpoint.range else {}),
        **({"speculating": _latency(endpoint.speculating)} if endpoint.speculating else {}),
        **(
            {"speculating_range": list(map(_latency, endpoint.speculating_range))}
            if endpoint.speculating_range
            else {}
        ),
    }


def _latency(model: LatencyModel) -> dict[str, object]:
    return {"form": _FORMS[type(model)], **asdict(model)}  # type: ignore[call-overload]


def finite(link: Link) -> dict[str, object]:
    """Return the fields of a link with null for unlimited, since JSON has no infinity."""
    return {name: None if isinf(value) else value for name, value in asdict(link).items()}


ENDS = ("fast", "slow")
DECIDED_ANEW = "anew"
AS_DRAFTED = "as drafted"
"""Whether a method decided anew at each end of a range, or its rounds were timed there as they were
drafted.
"""


def describe_range(ends: Iterable[str], decisions: str) -> dict[str, object]:
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
