"""Measure the share of decoding time outside of the models' forwards."""

from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.common import (
    AUTOREGRESSIVE,
    FIXED_K,
    Bound,
    Figure,
    Outcome,
    Runners,
    Setting,
    over_rounds,
)
from specbench_kit.models.executors.base import Executor
from specbench_kit.models.executors.padded import PaddedExecutor

METHODS = (AUTOREGRESSIVE, FIXED_K, "threshold")
TREE = "specedge"
BATCH_SIZES = (1, 4)


class Stopwatch:
    """Times the computation of an executor; padding, masks and KV bookkeeping are not part of it."""

    def __init__(self, executor: Executor) -> None:
        name = "compute" if isinstance(executor, PaddedExecutor) else "forward"
        self._compute, self.seconds = getattr(executor, name), 0.0
        setattr(executor, name, self)

    def __call__(self, *arguments: Any) -> Any:
        started_s = perf_counter()
        computed = self._compute(*arguments)
        self.seconds += perf_counter() - started_s
        return computed


class Outside(NamedTuple):
    """Time outside of forwards in one pass over the prompts."""

    share: float
    """Percentage of the decoding time."""
    round_ms: float


def run(setting: Setting) -> Outcome:
    """Measure engine seconds minus forward seconds, as a share of engine seconds and per round."""
    figures = [
        figure for executor in setting.executor_names for figure in _figures(setting, executor)
    ]
    return Outcome("Loop overhead: decoding time outside of model forwards", figures)


def _figures(setting: Setting, executor: str) -> list[Figure]:
    runners = setting.runners(executor, max(BATCH_SIZES))
    stopwatches = [Stopwatch(runner.executor) for runner in runners]
    cases = [(method, size) for method in METHODS for size in BATCH_SIZES] + [(TREE, 1)]
    for case in cases:
        _outside(setting, runners, stopwatches, *case)
    passes: dict[tuple[str, int], list[Outside]] = {case: [] for case in cases}
    for _ in range(setting.rounds):
        for case in cases:
            passes[case].append(_outside(setting, runners, stopwatches, *case))
    return [
        figure for case, outside in passes.items() for figure in _case(executor, *case, outside)
    ]


def _case(executor: str, method: str, size: int, outside: list[Outside]) -> list[Figure]:
    share, tree = Bound(most=8), method == TREE
    label = f"{executor}: {method}, batch {size}"
    return [
        over_rounds(label, [time.share for time in outside], "%", None if tree else share),
        over_rounds(
            f"{label}, a round",
            [time.round_ms for time in outside],
            "ms",
            Bound(most=1.5) if tree else None,
        ),
    ]


def _outside(
    setting: Setting, runners: Runners, stopwatches: list[Stopwatch], method: str, batch_size: int
) -> Outside:
    before_s = sum(stopwatch.seconds for stopwatch in stopwatches)
    records, decoding_s = setting.decode(runners, method, setting.requests, batch_size)
    outside_s = decoding_s - sum(stopwatch.seconds for stopwatch in stopwatches) + before_s
    rounds = sum(len(record.rounds) for record in records) / batch_size
    return Outside(100 * outside_s / decoding_s, 1000 * outside_s / rounds)
