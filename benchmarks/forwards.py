"""Single forwards: what a draft step costs beside a target step, and what wider verification costs."""

from functools import partial
from statistics import median

from benchmarks.common import Bound, Figure, Outcome, Setting, over_rounds, round_ratios, take_turns
from specbench_kit.models.runner import Append, Runner

CONTEXT = 200
WIDTHS = (1, 2, 5, 9, 17)
REPEATS = 20


def run(setting: Setting) -> Outcome:
    """Batch 1, context of 200 tokens; the bound holds for the executor that the kit takes by itself."""
    figures = [figure for executor in setting.executor_names for figure in _figures(setting, executor)]
    return Outcome(f"Forwards at batch 1, context {CONTEXT}", figures)


def _figures(setting: Setting, executor: str) -> list[Figure]:
    target, draft = setting.runners(executor, max_new_tokens=CONTEXT)
    slots = _fill(target), _fill(draft)
    forwards = {f"target, {width} new": partial(_forward, target, slots[0], width) for width in WIDTHS}
    forwards["draft, 1 new"] = partial(_forward, draft, slots[1], 1)
    seconds = take_turns(forwards, range(REPEATS), setting.rounds)
    bound = Bound(least=6) if executor == setting.executor_names[0] else None
    ratios = round_ratios(seconds, "target, 1 new", "draft, 1 new")
    return [
        over_rounds(f"{executor}: one target forward / one draft forward", ratios, "x", bound),
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


def _forward(runner: Runner, slot: int, width: int, _repeat: int) -> None:
    runner.forward([Append(slot, range(width), keep=width)])
    runner.commit(slot, [])
