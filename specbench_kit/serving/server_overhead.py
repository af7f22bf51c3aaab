"""The time that a server's processor takes besides verifications: sending answers, gaps between batches, scatter."""

from math import log, sqrt
from random import Random

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.network import Network


class ServerOverhead:
    """Adds what the processor takes to the isolated seconds of each verification."""

    def __init__(self, network: Network, verify_cv: float, seed: int) -> None:
        self._network, self._previous_answers, self._previous_end_s = network, 0, 0.0
        self._cv, self._random = verify_cv, Random(f"{seed}/scatter")
        variance = log(1 + verify_cv**2)
        self._mean, self._deviation = -variance / 2, sqrt(variance)
        self.free_s = 0.0
        """Time from which on the next verification may begin."""

    def verification_s(self, seconds: float, requests: int, now_s: float) -> float:
        """Return the duration of a verification of `requests` that starts at `now_s`.

        `seconds` is its isolated duration, which includes sending one answer per request.
        """
        if answer_s := self._network.answer_s:
            since_s = now_s - self._previous_end_s
            leaving = float(answers_leaving(self._previous_answers, since_s, self._network.frame_s))
            seconds += answer_s * (leaving - requests)
            require(
                seconds > 0,
                f"--answer-s {answer_s:g}: a verification of {requests} requests would take no time; its time includes "
                "one answer per request, so that an answer takes less",
            )
        if self._cv:
            seconds *= self._random.lognormvariate(self._mean, self._deviation)
        return seconds

    def verification_ended(self, ended_s: float, answers: int) -> None:
        """Note the end of a verification and how many answers it has to send."""
        self._previous_answers, self._previous_end_s = answers, ended_s
        self.free_s = ended_s + self._network.turn_s + self._network.turn_answer_s * answers


def answers_leaving(answers: Floats | float, since_s: Floats | float, frame_s: float) -> Floats:
    """Return how many of a batch's answers are still being sent `since_s` seconds after its end, `frame_s` each."""
    if not frame_s:
        return np.zeros_like(answers, dtype=np.float64)
    leaving: Floats = np.ceil(np.maximum(0.0, answers - since_s / frame_s))
    return leaving
