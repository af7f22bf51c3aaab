"""What a deployment is, field by field, as `run.json` holds it and as the models of time take it.

An endpoint of `run.json` states its latency model as a JSON object; an endpoint that predicts times
has the model itself. Both have their fields from the same class, `EndpointOf`, and a deployment of
either kind of endpoint has them from `DeploymentOf`. The order of the fields is that in `run.json`.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta

from specbench_kit.core.typed_json import Amount, Count, JsonObject, Rate

TOKEN_BYTES = 4
"""Size of one token id on the link."""
Placement = Literal["edge", "server"]
Latency = TypeVar("Latency")
Device = TypeVar("Device")


def _doc(text: str) -> Meta:
    return Meta(description=text)


@dataclass(frozen=True, slots=True)
class HandOver:
    """The transfer between two stages of a pipeline: a latency, and the tokens' hidden states over
    a bandwidth.
    """

    latency_s: Annotated[Amount, _doc("seconds of a transfer besides its bytes")] = 0.0
    bytes_per_token: Annotated[Amount, _doc("bytes of one token's hidden state")] = 0.0
    bytes_per_s: Annotated[Rate | None, _doc("bandwidth; null is unlimited")] = None
    per_pass: Annotated[
        Count, _doc("transfers that a pass through all stages pays for; the others take no time")
    ] = 1
    prune_s: Annotated[Amount, _doc("seconds of pruning the batches in flight, once per step")] = (
        0.0
    )
    batching_s: Annotated[
        Amount, _doc("seconds that every request beyond the first adds to a step")
    ] = 0.0

    def seconds(self, tokens: int) -> float:
        """Return the seconds of one transfer."""
        return self.latency_s + (
            tokens * self.bytes_per_token / self.bytes_per_s if self.bytes_per_s else 0.0
        )


@dataclass(frozen=True, slots=True)
class Link:
    """The network between drafter and verifier.

    A message takes half the round trip, plus or minus the jitter, and its bytes over the bandwidth.
    A share `loss` of messages is lost, and sent again after `retry_s`, until one arrives. The size
    of hidden states is for drafters that read the target's.
    """

    rtt_s: Annotated[Amount, _doc("seconds of a round trip; a message takes half of it")] = 0.0
    jitter_s: Annotated[
        Amount, _doc("most seconds that are added to or taken from a message, drawn uniformly")
    ] = 0.0
    up_bytes_per_s: Annotated[
        Rate | None, _doc("bytes per second towards the verifier; null is unlimited")
    ] = None
    down_bytes_per_s: Annotated[
        Rate | None, _doc("bytes per second towards the drafter; null is unlimited")
    ] = None
    seed: Annotated[Count, _doc("seed of jitter and loss")] = 0
    state_bytes: Annotated[
        Amount,
        _doc(
            "bytes of one token's hidden state in one layer; 0 takes the size of the target that "
            "runs"
        ),
    ] = 0.0
    draft_bytes: Annotated[
        Amount, _doc("bytes that are sent with the id of each drafted token")
    ] = 0.0
    loss: Annotated[
        float, Meta(ge=0, lt=1), _doc("share of messages that are lost, and sent again")
    ] = 0.0
    retry_s: Annotated[Amount, _doc("seconds after which a lost message is sent again")] = 0.0

    def nominal_s(self, tokens: int, bytes_per_s: float | None, more_bytes: float = 0.0) -> float:
        """Return the seconds of one message without jitter and loss; a bandwidth of None is
        unlimited.
        """
        transfer_s = (tokens * TOKEN_BYTES + more_bytes) / bytes_per_s if bytes_per_s else 0.0
        return self.rtt_s / 2 + transfer_s

    def message_s(
        self, tokens: int, bytes_per_s: float | None, random: Random, more_bytes: float = 0.0
    ) -> float:
        """Return the seconds of one message of token ids and `more_bytes`."""
        seconds = self.nominal_s(tokens, bytes_per_s, more_bytes)
        if self.jitter_s:
            seconds = max(0.0, seconds + self.jitter_s * (2 * random.random() - 1))
        while self.loss and random.random() < self.loss:
            seconds += self.retry_s
        return seconds


@dataclass(frozen=True, slots=True)
class EndpointOf(Generic[Latency]):
    """A device that runs one of the models.

    A verifier may be a pipeline of `stages`, each of which takes an equal share of `latency`.
    """

    device: Annotated[str, _doc("name of the device")]
    price_per_hour: Annotated[
        float,
        _doc(
            "dollars per hour, of a verifier for the whole run, of a drafter for the time in "
            "which it works"
        ),
    ] = field(default=0.0, kw_only=True)
    power_w: Annotated[float, _doc("watts under load; 0 if that is not known")] = field(
        default=0.0, kw_only=True
    )
    stages: Annotated[
        int, _doc("stages of a pipeline, each of which takes an equal share of the latency")
    ] = field(default=1, kw_only=True)
    origin: Annotated[str, _doc("where its latency model comes from")] = field(
        default="", kw_only=True
    )
    latency: Annotated[Latency, _doc("form of its latency model and that form's coefficients")]
    hand_over: Annotated[HandOver, _doc("transfer between two stages")] = field(
        default=HandOver(), kw_only=True
    )
    range: Annotated[
        tuple[Latency, Latency] | None,
        _doc(
            "latency models at the fast and the slow end of a derived latency; null if there is "
            "none"
        ),
    ] = field(default=None, kw_only=True)
    speculating: Annotated[
        Latency | None,
        _doc(
            "latency model while speculation is switched on, whatever is drafted; null if that adds "
            "nothing that is known"
        ),
    ] = field(default=None, kw_only=True)
    speculating_range: Annotated[
        tuple[Latency, Latency] | None,
        _doc("latency models at the fast and the slow end of it; null if there is none"),
    ] = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class DeploymentOf(Generic[Device]):
    """The devices of both models and the link between them.

    If the drafter is on the `edge`, every request has a drafting device of its own; on the
    `server`, the requests of a batch share one, and only prompt and answer cross the link.
    """

    name: Annotated[str, _doc("name of the deployment")]
    description: Annotated[str, _doc("the deployment in words")] = field(default="", kw_only=True)
    source: Annotated[str, _doc("where its numbers come from")] = field(default="", kw_only=True)
    placement: Annotated[
        Placement,
        _doc("where the drafter is: on a device of each request's own ('edge'), or on the server"),
    ] = field(default="edge", kw_only=True)
    predictor_s: Annotated[
        float | None,
        _doc(
            "seconds per token that a learned predictor scores, on the drafting device; null if "
            "that is not known"
        ),
    ] = field(default=None, kw_only=True)
    predictor_origin: Annotated[str, _doc("where those seconds come from")] = field(
        default="", kw_only=True
    )
    cached_prompts: Annotated[
        bool, _doc("whether both models have a prompt in KV when its request arrives")
    ] = field(default=False, kw_only=True)
    drafter: Annotated[Device, _doc("device of the draft model")]
    verifier: Annotated[Device, _doc("device of the target")]
    link: Annotated[Link, _doc("the network between them")] = Link()
    colocated: Annotated[
        Device | None,
        _doc(
            "draft model on the server, for the comparison with an edge; null if it is as fast as "
            "the drafter"
        ),
    ] = field(default=None, kw_only=True)


LatencyDescription = JsonObject
"""A latency model by its form: the model's own coefficients, from which `restore_latency` makes it."""


@dataclass(frozen=True, slots=True)
class EndpointDescription(EndpointOf[LatencyDescription]):
    """A device that runs one of the models, with its latency model as `run.json` states it."""


@dataclass(frozen=True, slots=True)
class DeploymentDescription(DeploymentOf[EndpointDescription]):
    """The deployment that time is modelled on: every number that decides its time and its price."""
