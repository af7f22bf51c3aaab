"""The share of decoding time that passes outside of the models' forwards."""

from time import perf_counter

from benchmarks.common import AUTOREGRESSIVE, FIXED_K, Bound, Figure, Outcome, Runners, Setting, over_rounds
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor

METHODS = (AUTOREGRESSIVE, FIXED_K, "threshold")
BATCH_SIZES = (1, 4)


class Stopwatch:
    """Stands before an executor's computation: padding, masks and KV bookkeeping count as time outside of it."""

    def __init__(self, executor: PaddedExecutor) -> None:
        self._compute, self.seconds = executor.compute, 0.0
        executor.compute = self  # type: ignore[method-assign]

    def __call__(self, batch: ForwardInput) -> Computed:
        started_s = perf_counter()
        computed = self._compute(batch)
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
