"""A verifier that is a pipeline of stages, each of them one or several cards that share its
layers.
"""

from dataclasses import replace

from specbench_kit.core.errors import require
from specbench_kit.deployments.base import Endpoint
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.derived_run import interconnect_of
from specbench_kit.profilers.devices import BYTES, Device
from specbench_kit.runs.deployment import HandOver


def in_stages(
    verifier: Endpoint, profile: Profile, shapes: Architecture, card: Device, stages: int
) -> Endpoint:
    """Return a verifier in so many stages, each on the cards of `profile`, which are all those of
    `verifier`.

    A forward takes as long as on one stage's cards that held the whole model, and a transfer of
    each new token's hidden state between two stages over the interconnect of one card. Every stage
    takes an equal share: engines give the last one fewer layers, for the output layer.
    """
    if stages == 1:
        return verifier
    interconnect = interconnect_of(card)
    return replace(
        verifier,
        device=f"{stages} stages of {verifier.device}",
        stages=stages,
        hand_over=HandOver(
            latency_s=interconnect.latency_s,
            bytes_per_token=float(shapes.hidden_size * BYTES[profile.dtype]),
            bytes_per_s=interconnect.bytes_per_s,
            per_pass=stages - 1,
        ),
        power_w=stages * verifier.power_w,
    )


def require_even(shapes: Architecture, members: int, stages: int, label: str) -> None:
    """Raise SkitError unless so many cards in so many stages can share a model evenly."""
    require(
        members % stages == 0,
        f"{label}: {members} cards cannot be divided into {stages} equal stages",
    )
    require(
        shapes.layers % stages == 0,
        f"{label}: {stages} stages cannot share {shapes.layers} layers evenly: try 2, 4",
    )
    each = members // stages
    require(
        shapes.heads % each == 0,
        f"{label}: {each} cards cannot share {shapes.heads} heads evenly: try 1, 2, 4",
    )
