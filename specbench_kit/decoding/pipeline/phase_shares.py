"""The clock's phases, shared out among the requests that go through a pipeline together."""

from collections import defaultdict

from specbench_kit.decoding.clock import Clock, Phase


class PhaseShares:
    """Seconds by phase of one of the requests, summed up since the run began: all that share a step count alike.

    What a request spent is the difference of two readings, so that nothing is to be done for it in between.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: defaultdict[Phase, float] = defaultdict(float)

    def read(self, sharing: int) -> dict[Phase, float]:
        """The sums up to now; `sharing` requests went through the pipeline since the last reading."""
        for phase, seconds in self._clock.take().items():
            self._totals[phase] += seconds / max(1, sharing)
        return dict(self._totals)
