"""WISP's Algorithm 1 on the deadlines of rounds, as printed, and the smallest change that repairs
it.
"""

from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    DEADLINES,
    BatchLimits,
    DeadlineKind,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("wisp-paper")
@dataclass(frozen=True)
class WispPaper(Scheduler):
    """Serves critical requests by deadline, then the others by expected tokens per second of
    verification they add.

    A request is critical from `guard_s` seconds before its latest start on, which is its deadline
    less its isolated time; `guard_s` is of the order of the estimator's error. The batch is
    complete at the first request with which it would miss a deadline. So a request that is late
    even by itself, the most critical of all, ends every batch before it begins, and the server
    stands idle for good.

    With `late_lane`, such requests yield: in the order of their arrival they take the remaining
    room, and all of it if nobody else waits. A batch may last `amortise` times as long as an empty
    one even if a deadline is missed; the paper has no such rule. `by` chooses the deadlines: the paper's
    are those of rounds; those by the promises to whole responses move with accepted tokens, as of `edf`.
    """

    guard_s: float = 0.05
    late_lane: bool = False
    amortise: float = 0.0
    by: DeadlineKind = "round"
    source = "WISP, Li et al. 2026 (arXiv 2601.11652), Algorithm 1"

    def __post_init__(self) -> None:
        require(
            self.guard_s >= 0, f"wisp-paper: guard_s must not be negative, but is {self.guard_s}"
        )
        require(
            self.amortise >= 0, f"wisp-paper: amortise must not be negative, but is {self.amortise}"
        )

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PaperQueue(self, estimator, limits)


class _PaperQueue(Queue):
    def __init__(self, options: WispPaper, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._options = options
        self._deadline_of = DEADLINES[options.by]
        self._free_s = options.amortise * estimator.idle_s
        self._waiting: list[WaitingRound] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRound) -> None:
        self._waiting.append(request)

    def next_batch(self, now_s: float) -> Decision:
        late = [
            request
            for request in self._waiting
            if self._options.late_lane and now_s + request.isolated_s > self._deadline_of(request)
        ]
        batch = self.new_batch(self._deadline_of, self._free_s)
        for request in self._in_order(now_s, late):
            if not batch.take(request, now_s):
                break
        for request in late:
            if not (batch.fits(request) and batch.leaves_time(request, now_s)):
                break
            batch.add(request, binding=False)
        decision = batch.decision()
        self._waiting = [request for request in self._waiting if not request.scheduled]
        return decision

    def _in_order(self, now_s: float, late: list[WaitingRound]) -> list[WaitingRound]:
        """Return the critical requests by deadline, then the others by utility."""

        def utility(request: WaitingRound) -> float:
            return request.expected_tokens / max(request.isolated_s - self.estimator.idle_s, 1e-12)

        def latest_start_s(request: WaitingRound) -> float:
            return self._deadline_of(request) - request.isolated_s

        critical_s = now_s + self._options.guard_s
        late_ids = set(map(id, late))
        feasible = [request for request in self._waiting if id(request) not in late_ids]
        critical = [request for request in feasible if latest_start_s(request) <= critical_s]
        uncritical = [request for request in feasible if latest_start_s(request) > critical_s]
        return sorted(critical, key=self._deadline_of) + sorted(
            uncritical, key=utility, reverse=True
        )
