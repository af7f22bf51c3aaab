"""Fixed chains of four against plain decoding, in wall-clock time."""

from statistics import median

from benchmarks.common import AUTOREGRESSIVE, FIXED_K, Bound, Figure, Outcome, Setting, take_turns
from specbench_kit.decoding.session import Request
from specbench_kit.metrics.statistics import interval_of_ratio


def run(setting: Setting) -> Outcome:
    """Each request counts with its median over the rounds; the interval is over requests."""
    executor = setting.executor_names[0]
    runners = setting.runners(executor)

    def decode(method: str, request: Request) -> None:
        setting.decode(runners, method, [request])

    contenders = {name: lambda r, name=name: decode(name, r) for name in (AUTOREGRESSIVE, FIXED_K)}
    seconds = take_turns(contenders, setting.requests, setting.rounds)
    plain, drafted = ([median(item) for item in zip(*seconds[name], strict=True)] for name in contenders)
    low, high = interval_of_ratio(plain, drafted) or (float("nan"),) * 2
    label = f"{FIXED_K}, times faster than {AUTOREGRESSIVE}"
    return Outcome(
        f"Speed-up on {executor}, {len(plain)} requests (the spread is the 95% interval)",
        [
            Figure(label, sum(plain) / sum(drafted), "x", spread=(low, high)),
            Figure("lower end of its 95% paired interval", low, "x", Bound(least=1)),
        ],
    )
