"""The host beside a card: the time that it takes to prepare a step, and how far both work in parallel."""

from dataclasses import dataclass, replace

from specbench_kit.core.errors import require

STEP_RANGE_S = (0.0, 3e-3)
"""The seconds per step that hosts of serving engines were seen to take, from none that shows to 3 ms."""


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of the host per step and per request of it, and the share of the shorter of both times that is hidden.

    With an `overlap` of 1 the slower of host and card decides; with 0 the card waits while the host prepares a step, as
    in engines that decide on a step after they have seen the tokens of the last one.
    """

    step_s: float = 0.0
    request_s: float = 0.0
    overlap: float = 0.0

    def __post_init__(self) -> None:
        require(self.step_s >= 0, f"--host-s must not be negative, but is {self.step_s:g}")
        require(self.request_s >= 0, f"--host-request-s must not be negative, but is {self.request_s:g}")
        require(0 <= self.overlap <= 1, f"--overlap must be between 0 and 1, not {self.overlap:g}")

    def with_step_s(self, step_s: float) -> "Host":
        """Return a host that takes so many seconds per step."""
        return replace(self, step_s=step_s)


NO_HOST = Host()
