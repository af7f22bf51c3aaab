"""Modelled time of rounds: the recorded seconds of draft and verification, and what deciding costs."""

from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.latency import stopwatch
from specbench_kit.traces.trace import TraceHeader
from specbench_kit.training.offsets import Offsets
from specbench_kit.training.rounds import Plan, Rounds, play

TRIALS = 200


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one draft step, of verifying 0, 1, ... tokens, and of a token's draft statistics."""

    draft_s: float
    verify_s: tuple[float, ...]
    statistics_s: float

    @classmethod
    def of(cls, header: TraceHeader, statistics_s: float) -> "Timing":
        """The timing of the machine that a trace was recorded on."""
        return cls(header.draft_s, header.verify_s, statistics_s)

    def seconds(self, rounds: Rounds, policy_s: float) -> NDArray[np.float64]:
        """Of each round, when deciding costs `policy_s` per drafted token."""
        verify_s = np.asarray(self.verify_s, np.float64)[rounds.submitted]
        seconds: NDArray[np.float64] = rounds.drafted * (self.draft_s + policy_s) + verify_s
        return seconds

    def speed(self, offsets: Offsets, plan: Plan, policy_s: float) -> float:
        """Committed tokens per second."""
        rounds = play(offsets, plan)
        return float(rounds.committed.sum() / self.seconds(rounds, policy_s).sum())


def measure_statistics(vocabulary: int, device: str) -> float:
    """Median seconds of a drafted token's statistics over a vocabulary, as a stop rule asks for them."""
    import torch

    from specbench_kit.decoding.sampling import Sampler
    from specbench_kit.decoding.tree import DraftForward

    logits = torch.randn(1, vocabulary, device=device)
    seconds = []
    for _ in range(TRIALS):
        elapsed_s = stopwatch()
        DraftForward([logits], Sampler()).stats(0, 0)
        seconds.append(elapsed_s())
    return median(seconds)
