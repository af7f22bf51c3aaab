"""The clock's phases, divided among the requests that go through a pipeline together."""

from collections import defaultdict

from specbench_kit.decoding.clock import Clock, Phase


class PhaseShares:
    """Running totals of one request's share of each phase; all requests that share a step count alike.

    A request's round took the difference of two readings. In between nothing has to be done for it, though requests
    come and go: whoever changes their number reads first, so that every total is divided by the number it belongs to.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: defaultdict[Phase, float] = defaultdict(float)

    def read(self, sharing: int) -> dict[Phase, float]:
        """Return the totals; `sharing` requests went through the pipeline since the last reading."""
        for phase, seconds in self._clock.take().items():
            self._totals[phase] += seconds / max(1, sharing)
        return dict(self._totals)
