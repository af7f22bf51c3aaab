"""The share of decoding time that passes outside of the models' forwards."""

from time import perf_counter
from typing import Any

from benchmarks.common import AUTOREGRESSIVE, FIXED_K, Bound, Figure, Outcome, Runners, Setting, over_rounds
from specbench_kit.models.executors.base import Executor
from specbench_kit.models.executors.padded import PaddedExecutor

METHODS = (AUTOREGRESSIVE, FIXED_K, "threshold")
BATCH_SIZES = (1, 4)


class Stopwatch:
    """Stands before an executor's computation: padding, masks and KV bookkeeping count as time outside of it."""

    def __init__(self, executor: Executor) -> None:
        name = "compute" if isinstance(executor, PaddedExecutor) else "forward"
        self._compute, self.seconds = getattr(executor, name), 0.0
        setattr(executor, name, self)

    def __call__(self, *arguments: Any) -> Any:
        started_s = perf_counter()
        computed = self._compute(*arguments)
        self.seconds += perf_counter() - started_s
        return computed


def run(setting: Setting) -> Outcome:
    """Engine seconds less forward seconds, over engine seconds."""
    figures = [figure for executor in setting.executor_names for figure in _figures(setting, executor)]
    return Outcome("Loop overhead: share of decoding time outside of model forwards", figures)


def _figures(setting: Setting, executor: str) -> list[Figure]:
    runners = setting.runners(executor, max(BATCH_SIZES))
    stopwatches = [Stopwatch(runner.executor) for runner in runners]
    cases = [(method, size) for method in METHODS for size in BATCH_SIZES]
    for case in cases:
        _outside(setting, runners, stopwatches, *case)
    shares: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(setting.rounds):
        for case in cases:
            shares[case].append(_outside(setting, runners, stopwatches, *case))
    return [
        over_rounds(f"{executor}: {method}, batch {size}", values, "%", Bound(most=8))
        for (method, size), values in shares.items()
    ]


def _outside(setting: Setting, runners: Runners, stopwatches: list[Stopwatch], method: str, batch_size: int) -> float:
    before_s = sum(stopwatch.seconds for stopwatch in stopwatches)
    _, decoding_s = setting.decode(runners, method, setting.requests, batch_size)
    forwards_s = sum(stopwatch.seconds for stopwatch in stopwatches) - before_s
    return 100 * (1 - forwards_s / decoding_s)
