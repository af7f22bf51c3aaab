"""A deployment as `run.json` holds it: every number that decides its time and its price."""

import json
from dataclasses import asdict
from hashlib import sha256
from math import isinf
from typing import Any

from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint, HandOver, Link
from specbench_kit.deployments.forms import MODELS

Fields = dict[str, Any]
DIGITS = 12
TIMED = ("latency", "stages", "hand_over")
"""What an endpoint's time depends on."""

_FORMS: dict[type, str] = {model: form for form, model in MODELS.items()} | {TableModel: "table"}


def describe(deployment: Deployment) -> Fields:
    """The content of `deployment` in `run.json`; a bandwidth of null is unlimited."""
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


def describe_time(deployment: Deployment | None) -> Fields:
    """What `run.json` says of time: this machine's, or a deployment's."""
    if deployment is None:
        return {"time_kind": "measured"}
    return {"time_kind": "modelled", "deployment": describe(deployment)}


def digest(deployment: Deployment) -> str:
    """The start of a SHA-256 of every number that its time depends on: under one name a deployment may have others.

    What is zero or not given is left out, so that it stays the same when deployments learn to say more.
    """
    described = describe(deployment)
    parts = {role: {part: described[role][part] for part in TIMED} for role in ("drafter", "verifier")}
    link = {**described["link"], "seed": None}
    numbers = {**parts, "link": link, **{name: described[name] for name in ("placement", "predictor_s")}}
    return sha256(json.dumps(_given(numbers), sort_keys=True).encode()).hexdigest()[:DIGITS]


def _given(value: Any) -> Any:
    """Without the fields, at any depth, that are zero or not given."""
    if not isinstance(value, dict):
        return value
    return {name: _given(one) for name, one in value.items() if one}


def _endpoint(endpoint: Endpoint) -> Fields:
    latency: Any = endpoint.latency
    return {
        "device": endpoint.device,
        "price_per_hour": endpoint.price_per_hour,
        "power_w": endpoint.power_w,
        "stages": endpoint.stages,
        "origin": endpoint.origin,
        "latency": {"form": _FORMS[type(latency)], **asdict(latency)},
        "hand_over": finite(endpoint.hand_over),
    }


def finite(record: Link | HandOver) -> Fields:
    """A part of a deployment; null is unlimited."""
    return {name: None if isinf(value) else value for name, value in asdict(record).items()}
