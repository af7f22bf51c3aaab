"""Single forwards: what a draft step costs beside a target step, and what wider verification costs."""

from functools import partial
from statistics import median

from benchmarks.common import Bound, Figure, Outcome, Setting, over_rounds, round_ratios, take_turns
from specbench_kit.models.runner import Append, Runner

CONTEXT = 200
WIDTHS = (1, 2, 5, 9, 17)
REPEATS = 20
ROW = 20
"""Forwards of one model in a row: its weights then stay in the caches, as they do not where two models alternate."""


def run(setting: Setting) -> Outcome:
    """Batch 1, context of 200 tokens; the bound holds for the executor that the kit takes by itself."""
    figures = [figure for executor in setting.executor_names for figure in _figures(setting, executor)]
    return Outcome(f"Forwards at batch 1, context {CONTEXT}", figures)


def _figures(setting: Setting, executor: str) -> list[Figure]:
    target, draft = setting.runners(executor, max_new_tokens=CONTEXT)
    slots = _fill(target), _fill(draft)
    forwards = {f"target, {width} new": partial(_forward, target, slots[0], width) for width in WIDTHS}
    forwards["draft, 1 new"] = partial(_forward, draft, slots[1], 1)
    rows = {"target": f"target, {ROW} in a row", "draft": f"draft, {ROW} in a row"}
    forwards[rows["target"]] = partial(_forward, target, slots[0], 1, times=ROW)
    forwards[rows["draft"]] = partial(_forward, draft, slots[1], 1, times=ROW)
    seconds = take_turns(forwards, range(REPEATS), setting.rounds)
    bound = Bound(least=6) if executor == setting.executor_names[0] else None
    ratios = round_ratios(seconds, "target, 1 new", "draft, 1 new")
    in_a_row = round_ratios(seconds, rows["target"], rows["draft"])
    return [
        over_rounds(f"{executor}: target / draft, {ROW} forwards in a row each", in_a_row, "x", bound),
        over_rounds(f"{executor}: target / draft, models alternating at every forward", ratios, "x", bound),
        *(
            over_rounds(f"{executor}: {name}", [1000 * median(row) for row in rows], "ms")
            for name, rows in seconds.items()
        ),
    ]


def _fill(runner: Runner) -> int:
    """A slot that holds the context."""
    slot = runner.acquire()
    runner.forward([Append(slot, range(CONTEXT))])
    runner.commit(slot, range(CONTEXT))
    return slot


def _forward(runner: Runner, slot: int, width: int, _repeat: int, times: int = 1) -> None:
    for _ in range(times):
        runner.forward([Append(slot, range(width), keep=width)])
        runner.commit(slot, [])
