"""The deployment contract: a drafter, a verifier and the link between them, or this machine as it is."""

from dataclasses import dataclass
from typing import Literal

from specbench_kit.decoding.latency import LatencyModel

TOKEN_BYTES = 4
"""Of one token id on the link."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A device that runs one of the models, and its price."""

    device: str
    latency: LatencyModel
    price_per_hour: float = 0.0
    stages: int = 1


@dataclass(frozen=True, slots=True)
class Link:
    """A message takes half the round trip, give or take the jitter, and its bytes over the bandwidth.

    Bandwidths in bytes per second; jitter is uniform, drawn from the seed.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    up_bytes_per_s: float = float("inf")
    down_bytes_per_s: float = float("inf")
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where each model runs. Drafting on the `edge`, every request has a device of its own; on the `server`, the
    batch shares the drafter and only prompt and answer cross the link.

    `predictor_s` is what the drafting device spends per token that a learned predictor judges. `cached_prompts`:
    both models have a prompt in KV when its request arrives.
    """

    name: str
    drafter: Endpoint
    verifier: Endpoint
    link: Link = Link()
    placement: Literal["edge", "server"] = "edge"
    predictor_s: float = 0.0
    cached_prompts: bool = False
