"""The scheduler's estimate of batch durations: a latency model, exact or with an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from random import Random

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.latency import NOTHING, BatchSums, LatencyModel, sums_of
from specbench_kit.profilers.base import Profile
from specbench_kit.serving.schedulers.waiting import WaitingRound

CACHED_SHAPES = 1 << 16
"""Shapes of requests whose isolated time is remembered."""


@dataclass(frozen=True, slots=True)
class EstimatorError:
    """The error of an estimator: a factor on all times, and log-normal noise on the time of each
    request.

    `model` replaces the true latency model, as if the server had been profiled on another device.
    """

    factor: float = 1.0
    noise: float = 0.0
    model: LatencyModel | None = None

    def __post_init__(self) -> None:
        require(self.factor > 0, f"the estimator's factor must be above 0, not {self.factor}")
        require(self.noise >= 0, f"the estimator's noise must not be negative, but is {self.noise}")


EXACT = EstimatorError()


class Estimator:
    """Expected seconds of batches; `idle_s` are those of a batch without requests."""

    def __init__(
        self, model: LatencyModel, error: EstimatorError = EXACT, seed: int | str = 0
    ) -> None:
        self._model = error.model or model
        self._error = error
        self._random = Random(f"{seed}/estimator")
        self.additive = self._model.additive
        self.idle_s = error.factor * self._model.of_sums(NOTHING)
        self.isolated_s = lru_cache(CACHED_SHAPES)(
            lambda new, cached: self.of_sums(NOTHING.plus((new, cached)))
        )
        """Returns the seconds of a batch of one request with so many new and cached tokens, without
        noise.
        """

    def estimate(self, *requests: WaitingRound) -> None:
        """Set how long each request is expected to take by itself."""
        for request in requests:
            request.isolated_s = seconds = self.isolated_s(request.new, request.cached)
            if self._error.noise:
                noise = exp(self._error.noise * self._random.gauss(0, 1))
                request.isolated_s = self.idle_s + (seconds - self.idle_s) * noise
                request.error_s = request.isolated_s - seconds

    def of_sums(self, sums: BatchSums) -> float:
        """Return the seconds of a batch with these sums, without the noise of its requests."""
        return self._error.factor * self._model.of_sums(sums)

    def batch_s(
        self, batch: Sequence[WaitingRound], chunks: Mapping[int, int] | None = None
    ) -> float:
        """Return the seconds of a batch of estimated requests; of clients in `chunks` only so many
        tokens count.
        """
        if chunks:
            return self.of_sums(
                sums_of(
                    (chunks.get(request.client, request.new), request.cached) for request in batch
                )
            )
        if self.additive:
            return self.idle_s + sum(request.isolated_s - self.idle_s for request in batch)
        error_s = sum(request.error_s for request in batch)
        return self.of_sums(sums_of((request.new, request.cached) for request in batch)) + error_s


def estimate_with_profile(profile: Profile, served: Profile) -> EstimatorError:
    """Return the error of estimating with another device's profile; it has to be of the same
    model.
    """
    if profile.model != served.model:
        raise SkitError(
            f"the profile '{profile.name}' is of {profile.model or 'no known model'}, but the server runs "
            f"{served.model or 'no known model'}: choose a profile of the same model"
        )
    return EstimatorError(model=profile.latency())
