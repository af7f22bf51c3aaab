"""What a server's processor does besides: answers leave, verifications scatter, and one does not follow at once."""

from math import log, sqrt
from random import Random
from typing import Any

import numpy as np

from specbench_kit.serving.network import Network


class ServerOverhead:
    """The processor of one simulation; the verification's own seconds are the deployment's."""

    def __init__(self, network: Network, verify_cv: float, seed: int) -> None:
        self._network, self._answers, self._ended_s = network, 0, 0.0
        self._cv, self._random = verify_cv, Random(f"{seed}/scatter")
        variance = log(1 + verify_cv**2)
        self._mean, self._deviation = -variance / 2, sqrt(variance)
        self.free_s = 0.0
        """When the next verification may begin."""

    def takes_s(self, seconds: float, requests: int, now_s: float) -> float:
        """Seconds of a verification that begins now; alone, with one answer to send for each request, so many."""
        if answer_s := self._network.answer_s:
            behind = float(leaving(self._answers, now_s - self._ended_s, self._network.frame_s))
            seconds = max(0.0, seconds + answer_s * (behind - requests))
        if self._cv:
            seconds *= self._random.lognormvariate(self._mean, self._deviation)
        return seconds

    def ended(self, ended_s: float, answers: int) -> None:
        """A verification is through."""
        self._answers, self._ended_s = answers, ended_s
        self.free_s = ended_s + self._network.turn_s + self._network.turn_answer_s * answers


def leaving(answers: Any, since_s: Any, frame_s: float) -> Any:
    """Answers of a verification that are not out yet so long after its end: one leaves after the other."""
    return np.ceil(np.maximum(0.0, answers - since_s / frame_s)) if frame_s else 0.0 * answers
