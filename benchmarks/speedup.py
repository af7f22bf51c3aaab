"""Time fixed chains of four tokens against plain decoding, one by one and in a batch."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from benchmarks.common import (
    AUTOREGRESSIVE,
    FIXED_K,
    Bound,
    Figure,
    Outcome,
    Runners,
    Setting,
    over_rounds,
    round_ratios,
    take_turns,
)
from specbench_kit.decoding.session import Request
from specbench_kit.metrics.statistics import interval_of_ratio

BATCH = 8


def run(setting: Setting) -> Outcome:
    """Time both; one by one, each request counts with its median over rounds, and the interval is over requests."""
    executor = setting.executor_names[0]
    seconds = take_turns(
        _contenders(setting, setting.runners(executor), 1), _parts(setting, 1), setting.rounds
    )
    plain, drafted = (
        [median(item) for item in zip(*seconds[name], strict=True)] for name in seconds
    )
    low, high = interval_of_ratio(plain, drafted) or (float("nan"),) * 2
    label = f"{FIXED_K}, times faster than {AUTOREGRESSIVE}"
    return Outcome(
        f"Speedup on {executor}, {len(plain)} requests (the spread is the 95% interval; in a batch, of the rounds)",
        [
            Figure(label, sum(plain) / sum(drafted), "x", spread=(low, high)),
            Figure("lower end of its 95% paired interval", low, "x", Bound(least=1)),
            _in_a_batch(setting, executor, label),
        ],
    )


def _in_a_batch(setting: Setting, executor: str, label: str) -> Figure:
    contenders = _contenders(setting, setting.runners(executor, BATCH), BATCH)
    seconds = take_turns(contenders, _parts(setting, BATCH), setting.rounds)
    return over_rounds(
        f"{label}, batch {BATCH}",
        round_ratios(seconds, AUTOREGRESSIVE, FIXED_K),
        "x",
        Bound(least=1),
    )


def _parts(setting: Setting, size: int) -> list[Sequence[Request]]:
    return [setting.requests[at : at + size] for at in range(0, len(setting.requests), size)]


def _contenders(
    setting: Setting, runners: Runners, size: int
) -> dict[str, Callable[[Sequence[Request]], object]]:
    def decode(method: str, requests: Sequence[Request]) -> None:
        setting.decode(runners, method, requests, size)

    return {name: partial(decode, name) for name in (AUTOREGRESSIVE, FIXED_K)}
