"""Check that decoding keeps its speed as the output grows; end-of-sequence is ignored."""

from collections.abc import Callable
from dataclasses import replace

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
from specbench_kit.decoding.records import RequestRecord

SHORT, LONG = 64, 512
PROMPTS = 3


def run(setting: Setting) -> Outcome:
    """Compare tokens per second at 512 new tokens with those at 64, with and without prefill."""
    runners = setting.runners(setting.executor_names[0], max_new_tokens=LONG)
    figures = [
        figure
        for method in (AUTOREGRESSIVE, FIXED_K)
        for figure in _figures(setting, runners, method)
    ]
    return Outcome(f"Speed at {LONG} new tokens over speed at {SHORT}", figures)


def _figures(setting: Setting, runners: Runners, method: str) -> list[Figure]:
    rounds = [
        {length: _decode(setting, runners, method, length) for length in (SHORT, LONG)}
        for _ in range(setting.rounds)
    ]

    def figure(what: str, speed: Callable[[list[RequestRecord]], float]) -> Figure:
        ratios = [100 * speed(records[LONG]) / speed(records[SHORT]) for records in rounds]
        return over_rounds(f"{method}, {what}", ratios, "%", Bound(least=75))

    speeds = [
        over_rounds(f"{method}, {n} new", [_whole(r[n]) for r in rounds], "tokens/s")
        for n in (SHORT, LONG)
    ]
    return [
        figure("whole requests", _whole),
        figure("after the first token", _after_first),
        *speeds,
    ]


def _decode(setting: Setting, runners: Runners, method: str, length: int) -> list[RequestRecord]:
    requests = [replace(request, max_new_tokens=length) for request in setting.requests[:PROMPTS]]
    return setting.decode(runners, method, requests, eos_ids=frozenset())[0]


def _whole(records: list[RequestRecord]) -> float:
    return sum(len(r.output_ids) for r in records) / sum(r.e2e_s or 0.0 for r in records)


def _after_first(records: list[RequestRecord]) -> float:
    return len(records) / sum(r.tpot_s or 0.0 for r in records)
