"""What a server believes about time: a latency model, right or wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from random import Random

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import NOTHING, BatchSums, LatencyModel, sums_of
from specbench_kit.profilers.base import Profile
from specbench_kit.serving.schedulers.waiting import WaitingRound

REMEMBERED = 1 << 16
"""Sizes of requests whose time is kept."""


@dataclass(frozen=True, slots=True)
class EstimatorError:
    """How an estimator is wrong: all of its times by a factor, each request's besides by a log-normal one.

    `model` replaces the latency model, as one that was profiled on another device would.
    """

    factor: float = 1.0
    noise: float = 0.0
    model: LatencyModel | None = None

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise SkitError(f"the estimator's factor must be above 0, not {self.factor}")
        if self.noise < 0:
            raise SkitError(f"the estimator's noise must not be negative, but is {self.noise}")


RIGHT = EstimatorError()


class Estimator:
    """Seconds that batches are expected to take."""

    def __init__(self, model: LatencyModel, error: EstimatorError = RIGHT, seed: int = 0) -> None:
        self._model, self._error = error.model or model, error
        self._random = Random(f"{seed}/estimator")
        self.additive = self._model.additive
        self.idle_s = error.factor * self._model.of_sums(NOTHING) if self.additive else 0.0
        """Of a batch without requests."""
        self._alone_s = lru_cache(REMEMBERED)(self._of_one)

    def judge(self, *requests: WaitingRound) -> None:
        """Note how long each request takes by itself."""
        for request in requests:
            request.alone_s = seconds = self._alone_s(request.new, request.cached)
            if self._error.noise:
                noise = exp(self._error.noise * self._random.gauss(0, 1))
                request.alone_s = self.idle_s + (seconds - self.idle_s) * noise
                request.error_s = request.alone_s - seconds

    def of_sums(self, sums: BatchSums) -> float:
        """Of a batch with these sums, as far as its requests are judged rightly."""
        return self._error.factor * self._model.of_sums(sums)

    def of_batch(self, batch: Sequence[WaitingRound], parts: Mapping[int, int] | None = None) -> float:
        """Of judged requests together; of those in `parts` only so many tokens are computed."""
        if parts:
            return self.of_sums(sums_of((parts.get(one.client, one.new), one.cached) for one in batch))
        if self.additive:
            return self.idle_s + sum(request.alone_s - self.idle_s for request in batch)
        misjudged_s = sum(request.error_s for request in batch)
        return self.of_sums(sums_of((one.new, one.cached) for one in batch)) + misjudged_s

    def _of_one(self, new: int, cached: int) -> float:
        return self.of_sums(NOTHING.plus((new, cached)))


def of_another_device(profile: Profile, served: Profile) -> EstimatorError:
    """The error of using a profile that was taken elsewhere; it has to be of the same model."""
    if profile.model != served.model:
        raise SkitError(
            f"the profile '{profile.name}' is of {profile.model or 'no known model'}, but the server runs "
            f"{served.model or 'no known model'}: choose a profile of the same model"
        )
    return EstimatorError(model=profile.latency())
