"""A limit on the time that a command works for, after which it reports what is done."""

from math import inf

from specbench_kit.decoding.clock import monotonic_s


class TimeLimit:
    """A number of `minutes` from the first `start` on; without a number it never ends."""

    def __init__(self, minutes: float | None) -> None:
        self._minutes = minutes
        self._until_s = inf

    def start(self) -> None:
        """Start to count, if that has not begun."""
        if self._minutes is not None and self._until_s == inf:
            self._until_s = monotonic_s() + 60 * self._minutes

    @property
    def has_started(self) -> bool:
        """Return True once the minutes run."""
        return self._until_s < inf

    @property
    def is_over(self) -> bool:
        """Return True once the minutes have passed."""
        return monotonic_s() >= self._until_s


NO_LIMIT = TimeLimit(None)
