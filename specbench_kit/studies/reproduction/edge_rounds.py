"""The parts of a round of a drafting device and a server, by the data sheets of both."""

from dataclasses import dataclass
from typing import Any

from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.profilers.base import Role, model_of
from specbench_kit.profilers.loading import load


def latency_of(model: str, device: str, software: str, role: Role) -> LatencyModel:
    """Return the latency model of a model on a device, at the speed of a software."""
    profile = load(f"{model}@{device}", role=role, software=software)
    return model_of(profile.form, profile.coefficients)


def tree_s(model: str, device: str, software: str, levels: int, beams: int, context: int) -> float:
    """Return the seconds of drafting a tree: one forward of the root, then one of `beams` nodes for
    each further level.
    """
    latency = latency_of(model, device, software, "drafter")
    return latency.seconds([(1, context)]) + (levels - 1) * latency.seconds([(beams, context)])


def forward_s(model: str, device: str, software: str, tokens: int, context: int) -> float:
    """Return the seconds in which a server reads so many new tokens of one request: one in a plain
    step, a draft's and the root in a verification.
    """
    return latency_of(model, device, software, "verifier").seconds([(tokens, context)])


@dataclass(frozen=True, kw_only=True)
class EdgeRound:
    """A round whose tree is drafted at the edge, sent, verified, and answered.

    `tokens` are committed per round. `more_s` is added to every forward of the server, and so to
    its plain steps.
    """

    tokens: float
    draft_model: str
    edge: str
    edge_software: str
    levels: int
    beams: int
    target: str
    server: str
    server_software: str
    submitted: int
    context: int
    rtt_s: float
    more_s: float = 0.0

    def seconds(self) -> float:
        """Return the seconds of the round, without drafting ahead."""
        drafting_s = tree_s(
            self.draft_model, self.edge, self.edge_software, self.levels, self.beams, self.context
        )
        return drafting_s + self.rtt_s + self.server_s(1 + self.submitted)

    def server_s(self, tokens: int) -> float:
        """Return the seconds of a forward of the server."""
        own_s = forward_s(self.target, self.server, self.server_software, tokens, self.context)
        return own_s + self.more_s


def edge_round_rate(**inputs: Any) -> float:
    """Return the tokens per second of such rounds."""
    round_ = EdgeRound(**inputs)
    return round_.tokens / round_.seconds()


def edge_over_plain(**inputs: Any) -> float:
    """Return how many times as fast such rounds are as the server alone, which streams its
    tokens.
    """
    round_ = EdgeRound(**inputs)
    return round_.tokens * round_.server_s(1) / round_.seconds()
