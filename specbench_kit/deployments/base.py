"""The deployment contract: a drafter, a verifier and the link between them, or this machine as it
is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench_kit.decoding.latency import BatchSums, LatencyModel, Row, sums_of
from specbench_kit.runs.deployment import DeploymentOf, EndpointOf

IMPOSSIBLE = "IMPOSSIBLE: faster than its device can be"
"""What the origin of latencies says where the data sheet of their device refutes them."""
RECORDED = "recorded"
"""The name of the machine that recorded a trace."""


@dataclass(frozen=True, slots=True)
class Endpoint(EndpointOf[LatencyModel]):
    """A device that runs one of the models, and predicts how long it takes."""

    @property
    def while_speculating(self) -> "Endpoint":
        """The endpoint while speculation is switched on, whose steps may take longer even without a
        draft.
        """
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
class Deployment(DeploymentOf[Endpoint]):
    """The devices of both models, which predict their times, and the link between them."""

    @property
    def is_impossible(self) -> bool:
        """True if one of the devices is taken to be faster than its data sheet allows."""
        return any(IMPOSSIBLE in end.origin for end in (self.drafter, self.verifier))

    @property
    def while_speculating(self) -> "Deployment":
        """The deployment with the target's steps as they are while speculation is switched on."""
        return replace(self, verifier=self.verifier.while_speculating)
