"""A deployment from what `run.json` says of it: the way back from `description.describe`."""

from collections.abc import Mapping
from math import inf
from typing import Any

from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.deployments.base import Deployment, Endpoint, HandOver, Link
from specbench_kit.deployments.forms import MODELS

Fields = Mapping[str, Any]


def restore(described: Fields) -> Deployment:
    """The deployment with every number that decides its time and its price; nothing is looked up on this machine."""
    plain = ("name", "description", "source", "placement", "predictor_s", "cached_prompts")
    return Deployment(
        drafter=_endpoint(described["drafter"]),
        verifier=_endpoint(described["verifier"]),
        link=Link(**_unlimited(described["link"])),
        predictor_origin=described.get("predictor_origin", ""),
        colocated=_endpoint(described["colocated"]) if described.get("colocated") else None,
        **{name: described[name] for name in plain},
    )


def _endpoint(described: Fields) -> Endpoint:
    plain = ("device", "price_per_hour", "stages", "origin")
    hand_over = HandOver(**_unlimited(described["hand_over"]))
    latency = _latency(described["latency"])
    power_w = described.get("power_w", 0.0)
    return Endpoint(latency=latency, power_w=power_w, hand_over=hand_over, **{name: described[name] for name in plain})


def _latency(described: Fields) -> LatencyModel:
    numbers = {name: value for name, value in described.items() if name != "form"}
    if described["form"] == "table":
        return TableModel(tuple(numbers["by_new_tokens_s"]))
    return MODELS[described["form"]](**numbers)


def _unlimited(described: Fields) -> dict[str, Any]:
    return {name: inf if value is None else value for name, value in described.items()}
