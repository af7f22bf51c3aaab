"""Modelled time of rounds: what drafting, the link, verification and deciding take where the predictor will run."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specbench_kit.deployments.base import TOKEN_BYTES, Deployment, Link
from specbench_kit.studies.training.offsets import Integers, Offsets
from specbench_kit.studies.training.rounds import Plan, RoundArrays, play, seconds_of_each
from specbench_kit.traces.replay import recorded
from specbench_kit.traces.trace import TraceHeader


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one draft step, of verifying n = 0, 1, ... tokens, and of sending them and hearing back.

    `statistics_s` is what judging a drafted token takes, known as `origin` says; where `adds_scores`, a classifier's
    score comes on top.
    """

    draft_s: float
    verify_s: tuple[float, ...]
    statistics_s: float
    link_s: tuple[float, ...] = ()
    adds_scores: bool = True
    origin: str = ""

    @classmethod
    def of(cls, header: TraceHeader, deployment: Deployment | None, context: int) -> "Timing":
        """Of a deployment, or of the machine that the trace was recorded on, for requests one after another.

        Latency models are straight lines in the cached tokens: one context, the mean, stands for all. Prompts take
        no time. A deployment's own price of a predicted token includes the score; where it has none, judging takes
        what it took on the machine that recorded the trace.
        """
        here, lengths = recorded(header), range(header.max_draft + 1)
        place = deployment or here
        priced = here if place.predictor_s is None else place
        return cls(
            draft_s=place.drafter.latency.seconds([(1, context)]),
            verify_s=tuple(place.verifier.latency.seconds([(1 + count, context)]) for count in lengths),
            statistics_s=priced.predictor_s or 0.0,
            link_s=tuple(_round_trip_s(place.link, count) for count in lengths) if place.placement == "edge" else (),
            adds_scores=priced is here,
            origin=priced.predictor_origin,
        )

    @property
    def without_link(self) -> "Timing":
        """Of a method that leaves the whole answer to the verifier."""
        return replace(self, link_s=())

    def seconds(self, rounds: RoundArrays, policy_s: float) -> NDArray[np.float64]:
        """Of each round, when deciding costs `policy_s` per drafted token."""
        return self._seconds(rounds.drafted, rounds.submitted, policy_s)

    def speed(self, offsets: Offsets, plan: Plan, policy_s: float) -> float:
        """Committed tokens per second."""
        rounds = play(offsets, plan)
        return float(rounds.committed.sum() / self.seconds(rounds, policy_s).sum())

    def speeds(self, offsets: Offsets, plans: Plan, policy_s: NDArray[np.float64]) -> list[float]:
        """The same of several plans [plans, n], each with its own price of a decision [plans]."""
        seconds = self._seconds(plans.drafted, plans.submitted, policy_s[:, None])
        speeds: list[float] = (len(offsets) / seconds_of_each(offsets, plans, seconds)).tolist()
        return speeds

    def decision_s(self, score_s: float) -> float:
        """What a classifier pays for a token whose score takes so long."""
        return self.statistics_s + (score_s if self.adds_scores else 0.0)

    def _seconds(
        self, drafted: Integers, submitted: Integers, policy_s: "float | NDArray[np.float64]"
    ) -> NDArray[np.float64]:
        answer_s = np.sum([self.verify_s, self.link_s] if self.link_s else [self.verify_s], axis=0)[submitted]
        seconds: NDArray[np.float64] = drafted * (self.draft_s + policy_s) + answer_s
        return seconds


def _round_trip_s(link: Link, count: int) -> float:
    """Of `count` tokens and of the answer to them, all accepted."""
    return link.rtt_s + TOKEN_BYTES * (count / link.up_bytes_per_s + (count + 1) / link.down_bytes_per_s)
