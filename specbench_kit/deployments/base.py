"""The deployment contract: a drafter, a verifier and the link between them, or this machine as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, get_args

from specbench_kit.decoding.latency import BatchSums, LatencyModel, Row, sums_of

TOKEN_BYTES = 4
"""Of one token id on the link."""
RECORDED = "recorded"
"""What the machine is called that recorded a trace."""
Placement = Literal["edge", "server"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


@dataclass(frozen=True, slots=True)
class HandOver:
    """What lies between two stages of a pipeline: a latency, and the hidden states of the tokens over a bandwidth.

    A pass through all stages pays for `per_pass` of them; the others take no time. Where every step prunes what is in
    flight, `prune_s` is what that takes; `batching_s` comes on top of a step for every request beyond the first.
    """

    latency_s: float = 0.0
    bytes_per_token: float = 0.0
    bytes_per_s: float = float("inf")
    per_pass: int = 1
    prune_s: float = 0.0
    batching_s: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Of one hand-over."""
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A device that runs one of the models. `origin` says where its latency model is from.

    A verifier's price counts for the whole run, a drafter's for the time in which it works. `stages` are those of a
    pipeline that the verifier is cut into, each of which takes its share of `latency`. `power_w` is what it draws at
    work, 0 where nobody says.
    """

    device: str
    latency: LatencyModel
    price_per_hour: float = 0.0
    stages: int = 1
    origin: str = ""
    hand_over: HandOver = HandOver()
    power_w: float = 0.0

    def pass_s(self, rows: Sequence[Row]) -> float:
        """Seconds of one forward, through all stages one after the other."""
        return self.of_sums(sums_of(rows))

    def of_sums(self, sums: BatchSums) -> float:
        """The same of a batch with these sums."""
        return self.latency.of_sums(sums) + self.hand_over.per_pass * self.hand_over.seconds(sums.linear)


@dataclass(frozen=True, slots=True)
class Link:
    """A message takes half the round trip, give or take the jitter, and its bytes over the bandwidth.

    Bandwidths in bytes per second; jitter is uniform, drawn from the seed. `state_bytes` is the size of one token's
    hidden state in one layer, for drafters that read the target's; 0 stands for that of the target that runs.
    `draft_bytes` go up beside the id of each drafted token. A share `loss` of messages is lost, and sent again after
    `retry_s`, until one arrives.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    up_bytes_per_s: float = float("inf")
    down_bytes_per_s: float = float("inf")
    seed: int = 0
    state_bytes: float = 0.0
    draft_bytes: float = 0.0
    loss: float = 0.0
    retry_s: float = 0.0

    def message_s(self, tokens: int, bytes_per_s: float, random: Random, more_bytes: float = 0.0) -> float:
        """Seconds of one message of token ids, and of what goes with them."""
        seconds = self.rtt_s / 2 + (tokens * TOKEN_BYTES + more_bytes) / bytes_per_s
        if self.jitter_s:
            seconds = max(0.0, seconds + self.jitter_s * (2 * random.random() - 1))
        while self.loss and random.random() < self.loss:
            seconds += self.retry_s
        return seconds


class HiddenStates(NamedTuple):
    """Hidden states that a drafter reads, of every token that the target keeps: in which of its layers, and the bytes
    that cross the link for a token, none where the drafter is on the server."""

    layers: tuple[int, ...]
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where each model runs. Drafting on the `edge`, every request has a device of its own; on the `server`, the
    batch shares the drafter and only prompt and answer cross the link.

    `colocated` is the draft model beside the target, to hold an edge against; without it, it is as fast as the drafter.
    `predictor_s` is what the drafting device spends per token that a learned predictor judges, None where nobody says;
    `predictor_origin` says how that is known. `cached_prompts`: both models have a prompt in KV when its request
    arrives.
    """

    name: str
    drafter: Endpoint
    verifier: Endpoint
    link: Link = Link()
    placement: Placement = "edge"
    predictor_s: float | None = None
    cached_prompts: bool = False
    description: str = ""
    source: str = ""
    predictor_origin: str = ""
    colocated: Endpoint | None = None
