"""WISP's Algorithm 1 on the deadlines of rounds, as it is printed, and the least that repairs it."""

from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    BatchBuilder,
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    round_deadline,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("wisp-paper")
@dataclass(frozen=True)
class WispPaper(Scheduler):
    """A request is critical from its latest start on: its deadline, less its time alone and less `guard_s`.

    Critical requests go first, by deadline; then the others, by expected tokens per second of verification that they
    add. The batch is complete at the first request with which it would miss a deadline. So a request that is late
    even by itself, the most critical of all, ends every batch before it begins, and the server stands idle for good.

    With `late_lane`, such requests yield: they take the room that is left, those that came first before the others,
    and all of it when nobody else waits. A batch may take `amortise` times as long as an empty one whatever is due;
    the paper has no such rule. `guard_s` is of the order of the estimator's error.
    """

    guard_s: float = 0.05
    late_lane: bool = False
    amortise: float = 0.0
    source = "WISP, Li et al. 2025, Algorithm 1"

    def __post_init__(self) -> None:
        require(self.guard_s >= 0, f"wisp-paper: guard_s must not be negative, but is {self.guard_s}")
        require(self.amortise >= 0, f"wisp-paper: amortise must not be negative, but is {self.amortise}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PaperQueue(self, estimator, limits)


class _PaperQueue(Queue):
    def __init__(self, options: WispPaper, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._options, self._free_s = options, options.amortise * estimator.idle_s
        self._waiting: list[WaitingRound] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRound) -> None:
        self._waiting.append(request)

    def next_batch(self, now_s: float) -> Decision:
        late = [one for one in self._waiting if self._options.late_lane and now_s + one.alone_s > one.deadline_s]
        growing = self.growing(round_deadline, self._free_s)
        for request in self._in_order(now_s, late):
            if not growing.take(request, now_s):
                break
        self._fill(growing, late, now_s)
        decision = growing.decision()
        self._waiting = [one for one in self._waiting if not one.taken]
        return decision

    def _in_order(self, now_s: float, late: list[WaitingRound]) -> list[WaitingRound]:
        """The critical ones by deadline, then the others by utility."""
        pressing_s, lost = now_s + self._options.guard_s, set(map(id, late))
        timely = [one for one in self._waiting if id(one) not in lost]
        critical = [one for one in timely if one.deadline_s - one.alone_s <= pressing_s]
        others = [one for one in timely if one.deadline_s - one.alone_s > pressing_s]
        return sorted(critical, key=round_deadline) + sorted(others, key=self._utility, reverse=True)

    def _fill(self, growing: BatchBuilder, late: list[WaitingRound], now_s: float) -> None:
        for request in late:
            if not (growing.fits(request) and growing.leaves_time(request, now_s)):
                return
            growing.add(request, binding=False)

    def _utility(self, request: WaitingRound) -> float:
        return request.expected_tokens / max(request.alone_s - self.estimator.idle_s, 1e-12)
