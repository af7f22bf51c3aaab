"""The deployment contract: a drafter, a verifier and the link between them, or this machine as it
is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Annotated, Literal

from msgspec import Meta

from specbench_kit.core.typed_json import Amount, Count, Rate
from specbench_kit.decoding.latency import BatchSums, LatencyModel, Row, sums_of
from specbench_kit.runs.document import HandOver

TOKEN_BYTES = 4
"""Size of one token id on the link."""
IMPOSSIBLE = "IMPOSSIBLE: faster than its device can be"
"""What the origin of latencies says where the data sheet of their device refutes them."""
RECORDED = "recorded"
"""The name of the machine that recorded a trace."""
Placement = Literal["edge", "server"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A device that runs one of the models. `origin` says where its latency model comes from.

    A verifier's price counts for the whole run, a drafter's for the time in which it works. A
    verifier may be a pipeline of `stages`, each of which takes an equal share of `latency`.
    `power_w` is the power draw under load, 0 if it is not known. `range` are the latency models at
    the fast and the slow end of what a derived latency may be. `speculating` and
    `speculating_range` take their places while speculation is switched on, where the engine is
    known to take time for that; None where both are alike.
    """

    device: str
    latency: LatencyModel
    price_per_hour: float = 0.0
    stages: int = 1
    origin: str = ""
    hand_over: HandOver = field(default_factory=HandOver)
    power_w: float = 0.0
    range: tuple[LatencyModel, LatencyModel] | None = None
    speculating: LatencyModel | None = None
    speculating_range: tuple[LatencyModel, LatencyModel] | None = None

    @property
    def while_speculating(self) -> "Endpoint":
        """The endpoint while speculation is switched on, whose steps may take longer even without a draft."""
        if self.speculating is None:
            return self
        return replace(self, latency=self.speculating, range=self.speculating_range)

    def pass_s(self, rows: Sequence[Row]) -> float:
        """Return the seconds of one forward, through all stages one after the other."""
        return self.of_sums(sums_of(rows))

    def of_sums(self, sums: BatchSums) -> float:
        """Return the seconds of one forward of a batch with these sums."""
        return self.latency.of_sums(sums) + self.transfers_s(sums.linear)

    def transfers_s(self, tokens: int) -> float:
        """Return the seconds of the transfers between all stages in a forward of so many new
        tokens.
        """
        return self.hand_over.per_pass * self.hand_over.seconds(tokens)


@dataclass(frozen=True, slots=True)
class Link:
    """A network link: a message takes half the round trip, plus or minus the jitter, and its bytes
    over the bandwidth.

    Bandwidths are in bytes per second; the jitter is uniform, drawn from the seed. `state_bytes` is the size of one
    token's hidden state in one layer, for drafters that read the target's; 0 takes the size from the target that runs.
    `draft_bytes` are sent up with the id of each drafted token. A share `loss` of messages is lost, and sent again
    after `retry_s`, until one arrives.
    """

    rtt_s: Amount = 0.0
    jitter_s: Amount = 0.0
    up_bytes_per_s: Rate = float("inf")
    down_bytes_per_s: Rate = float("inf")
    seed: Count = 0
    state_bytes: Amount = 0.0
    draft_bytes: Amount = 0.0
    loss: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    retry_s: Amount = 0.0

    def nominal_s(self, tokens: int, bytes_per_s: float, more_bytes: float = 0.0) -> float:
        """Return the seconds of one message without jitter and loss."""
        return self.rtt_s / 2 + (tokens * TOKEN_BYTES + more_bytes) / bytes_per_s

    def message_s(
        self, tokens: int, bytes_per_s: float, random: Random, more_bytes: float = 0.0
    ) -> float:
        """Return the seconds of one message of token ids and `more_bytes`."""
        seconds = self.nominal_s(tokens, bytes_per_s, more_bytes)
        if self.jitter_s:
            seconds = max(0.0, seconds + self.jitter_s * (2 * random.random() - 1))
        while self.loss and random.random() < self.loss:
            seconds += self.retry_s
        return seconds


@dataclass(frozen=True, slots=True)
class Deployment:
    """The devices of both models and the link between them.

    If the drafter is on the `edge`, every request has a drafting device of its own; on the `server`, the requests of a
    batch share one, and only prompt and answer cross the link. `colocated` is the draft model on the server, for the
    comparison with an edge; if it is None, it is as fast as the drafter. `predictor_s` is the drafting device's time
    per token that a learned predictor scores, None if it is not known; `predictor_origin` is its source. With
    `cached_prompts` both models have the prompt in KV when its request arrives.
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

    @property
    def while_speculating(self) -> "Deployment":
        """The deployment with the target's steps as they are while speculation is switched on."""
        return replace(self, verifier=self.verifier.while_speculating)
