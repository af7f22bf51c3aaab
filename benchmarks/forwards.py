"""Time single forwards: a draft step against a target step, and verification of more tokens."""

from functools import partial
from statistics import median

import torch

from benchmarks.common import Bound, Figure, Outcome, Setting, over_rounds, round_ratios, take_turns
from specbench_kit.models.runner import Append, Runner

CONTEXT = 200
WIDTHS = (1, 2, 5, 9, 17)
WIDER = {5: 1.35, 17: 3.5}
"""Largest time of a forward over that of a single token, by number of tokens."""
TWO_THREADS = {5: 1.2, 17: 1.4}
"""Smallest speedup of two threads over one, by tokens per forward."""
REPEATS = 20
ROW = 20
"""Consecutive forwards of one model: its weights stay in the caches, as they do not when two models alternate."""


def run(setting: Setting) -> Outcome:
    """Time forwards of batch size 1 after 200 tokens; the bound is for the executor that the kit chooses by default."""
    figures = [
        figure for executor in setting.executor_names for figure in _figures(setting, executor)
    ]
    return Outcome(
        f"Forwards at batch 1, context {CONTEXT}", [*figures, *_with_two_threads(setting)]
    )


def _figures(setting: Setting, executor: str) -> list[Figure]:
    target, draft = setting.runners(executor, max_new_tokens=CONTEXT)
    slots = _fill(target), _fill(draft)
    forwards = {
        f"target, {width} new": partial(_forward, target, slots[0], width) for width in WIDTHS
    }
    forwards["draft, 1 new"] = partial(_forward, draft, slots[1], 1)
    rows = {"target": f"target, {ROW} in a row", "draft": f"draft, {ROW} in a row"}
    forwards[rows["target"]] = partial(_forward, target, slots[0], 1, times=ROW)
    forwards[rows["draft"]] = partial(_forward, draft, slots[1], 1, times=ROW)
    seconds = take_turns(forwards, range(REPEATS), setting.rounds)
    bound = Bound(least=6) if executor == setting.executor_names[0] else None
    ratios = round_ratios(seconds, "target, 1 new", "draft, 1 new")
    in_a_row = round_ratios(seconds, rows["target"], rows["draft"])
    wider = [
        over_rounds(
            f"{executor}: {width} new tokens / 1",
            round_ratios(seconds, f"target, {width} new", "target, 1 new"),
            "x",
            Bound(most=most) if bound else None,
        )
        for width, most in WIDER.items()
    ]
    return [
        *wider,
        over_rounds(
            f"{executor}: target / draft, {ROW} forwards in a row each", in_a_row, "x", bound
        ),
        over_rounds(
            f"{executor}: target / draft, models alternating at every forward", ratios, "x", bound
        ),
        *(
            over_rounds(f"{executor}: {name}", [1000 * median(row) for row in rows], "ms")
            for name, rows in seconds.items()
        ),
    ]


def _with_two_threads(setting: Setting) -> list[Figure]:
    """Time one thread against two, in turns, on the default executor."""
    executor, threads = setting.executor_names[0], torch.get_num_threads()
    target, _ = setting.runners(executor, max_new_tokens=CONTEXT)
    slot = _fill(target)

    def forward(width: int, count: int, repeat: int) -> None:
        torch.set_num_threads(count)
        _forward(target, slot, width, repeat)

    contenders = {
        f"{width}, {count}": partial(forward, width, count)
        for width in TWO_THREADS
        for count in (1, 2)
    }
    seconds = take_turns(contenders, range(REPEATS), setting.rounds)
    torch.set_num_threads(threads)
    return [
        over_rounds(
            f"{executor}: two threads, times faster than one at {width} new",
            round_ratios(seconds, f"{width}, 1", f"{width}, 2"),
            "x",
            Bound(least=least),
        )
        for width, least in TWO_THREADS.items()
    ]


def _fill(runner: Runner) -> int:
    """Return a slot that holds the context."""
    slot = runner.acquire()
    runner.forward([Append(slot, range(CONTEXT))])
    runner.commit(slot, range(CONTEXT))
    return slot


def _forward(runner: Runner, slot: int, width: int, _repeat: int, times: int = 1) -> None:
    for _ in range(times):
        runner.forward([Append(slot, range(width), keep=width)])
        runner.commit(slot, [])
