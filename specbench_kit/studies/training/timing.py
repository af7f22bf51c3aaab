"""Modelled time of rounds: drafting, link, verification and decisions in the deployment of the
predictor.
"""

from math import inf

import numpy as np
from msgspec import structs

from specbench_kit.deployments.base import Deployment
from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.studies.training.offsets import Integers, Offsets
from specbench_kit.studies.training.rounds import (
    PlannedDrafts,
    PlayedRounds,
    Seconds,
    play,
    possible,
    total_seconds,
)
from specbench_kit.studies.training.wording import Prices
from specbench_kit.traces.replay import recording_deployment
from specbench_kit.traces.trace import TraceHeader


class Timing(Prices, frozen=True):
    """The time that rounds, drafts and decisions take by their prices."""

    @classmethod
    def of(cls, header: TraceHeader, deployment: Deployment | None, context: int) -> "Timing":
        """Return the timing of a deployment, or of the machine that recorded the trace, without
        batching.

        Latency models are straight lines in the cached tokens, so that one context, the mean,
        stands for all. Prompts take no time. A deployment's own cost of a decision includes the
        score; if it states none, the cost is that of the machine that recorded the trace.
        """
        recording = recording_deployment(header)
        lengths = range(header.max_draft + 1)
        served = deployment or recording
        link = served.link
        priced = recording if served.predictor_s is None else served
        return cls(
            draft_s=served.drafter.latency.seconds([(1, context)]),
            verify_s=tuple(
                served.verifier.latency.seconds([(1 + count, context)]) for count in lengths
            ),
            statistics_s=priced.predictor_s or 0.0,
            # Sends `count` tokens, and receives the verdict on them with all accepted and a bonus
            # token.
            link_s=tuple(
                link.rtt_s
                + TOKEN_BYTES
                * (
                    count / (link.up_bytes_per_s or inf)
                    + (count + 1) / (link.down_bytes_per_s or inf)
                )
                for count in lengths
                if served.placement == "edge"
            ),
            adds_scores=priced is recording,
            origin=priced.predictor_origin,
        )

    @property
    def without_link(self) -> "Timing":
        """Return the timing of a method that leaves the whole answer to the verifier."""
        return structs.replace(self, link_s=())

    def seconds(self, rounds: PlayedRounds, policy_s: float) -> Seconds:
        """Return the seconds of each round if a decision costs `policy_s` per drafted token."""
        return self._seconds(rounds.drafted, rounds.submitted, policy_s)

    @property
    def round_s(self) -> tuple[float, ...]:
        """The seconds of a round with n = 0, 1, ... drafted tokens that costs no decision.

        One without any is left to the verifier, which does not wait for the device.
        """
        counts = np.arange(len(self.verify_s))
        seconds = self._seconds(counts, counts, 0.0).tolist()
        return (self.verify_s[0], *seconds[1:])

    def speed(self, offsets: Offsets, plan: PlannedDrafts, policy_s: float) -> float:
        """Return the committed tokens per second of a plan."""
        rounds = play(offsets, plan)
        return float(rounds.committed.sum() / self.seconds(rounds, policy_s).sum())

    def speeds(self, offsets: Offsets, plans: PlannedDrafts, policy_s: Seconds) -> list[float]:
        """Return the speed of several plans [plans, n], each with its own cost of a decision,
        [plans].
        """
        plans = possible(offsets, plans)
        seconds = self._seconds(plans.drafted, plans.submitted, policy_s[:, None])
        speeds: list[float] = (len(offsets) / total_seconds(offsets, plans, seconds)).tolist()
        return speeds

    def decision_s(self, score_s: float) -> float:
        """Return the cost of a classifier's decision on a token, if a score takes `score_s`."""
        return self.statistics_s + (score_s if self.adds_scores else 0.0)

    def _seconds(
        self, drafted: Integers, submitted: Integers, policy_s: float | Seconds
    ) -> Seconds:
        answer_s = np.sum([self.verify_s, self.link_s] if self.link_s else [self.verify_s], axis=0)[
            submitted
        ]
        seconds: Seconds = drafted * (self.draft_s + policy_s) + answer_s
        return seconds
