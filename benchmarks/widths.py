"""Time forwards of different widths on the native executors, in turns, after a context of 200 tokens."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped, over_rounds, take_turns
from specbench_kit.models.catalogue import locate
from specbench_kit.models.executors.base import executors
from specbench_kit.models.pair import load_model
from specbench_kit.models.runner import Append, Runner

EXECUTORS = ("native", "native-bf16", "native-int8")
CONTEXT = 200
WIDTHS = (1, 5, 9, 17, 33)
ON_TILES = {17: 1.3, 33: 1.7}
"""Largest time of a forward over that of a single token, by number of tokens, where the processor has AMX."""
PREFILL_SPEEDUP, DECODING_SPEEDUP = 4.0, 1.7
REPEATS = 5


def run(setting: Setting) -> Outcome:
    """Time every executor that runs the target; each round counts with the shortest of its repeats."""
    target = load_model(locate(setting.target, "target"), device="cpu")
    names = [name for name in EXECUTORS if not executors.get(name).refusal(target.model)]
    if len(names) < 2:
        raise Skipped(f"native-bf16 {executors.get('native-bf16').refusal(target.model)}")
    runners = {name: target.runner(2, 2 * CONTEXT + max(WIDTHS), None, name) for name in names}
    forwards: dict[str, Callable[[int], None]] = {}
    for name, runner in runners.items():
        filled, empty = _fill(runner), runner.acquire()
        forwards |= {
            f"{name}, {width}": partial(_forward, runner, filled, width, width) for width in WIDTHS
        }
        forwards[f"{name}, prefill"] = partial(_forward, runner, empty, CONTEXT, 1)
    seconds = take_turns(forwards, range(REPEATS), setting.rounds)
    shortest = {name: [min(row) for row in rows] for name, rows in seconds.items()}
    tiles = runners["native-bf16"].executor.products.endswith("on AMX")
    notes = (
        []
        if tiles
        else ["No AMX: the products of bf16 are as fast as those of fp32, and have no bounds."]
    )
    figures = [
        *_wider(names, shortest, tiles),
        *_faster(names, shortest, tiles),
        *(
            over_rounds(name, [1000 * value for value in rows], "ms")
            for name, rows in shortest.items()
        ),
    ]
    threads = torch.get_num_threads()
    return Outcome(
        f"Widths of forwards at batch 1, context {CONTEXT}, {threads} threads", figures, notes
    )


def _wider(names: list[str], shortest: dict[str, list[float]], tiles: bool) -> list[Figure]:
    """Return the time of wide forwards over that of one token, for each executor."""
    return [
        _ratio(
            f"{name}: {width} new tokens / 1",
            shortest[f"{name}, {width}"],
            shortest[f"{name}, 1"],
            Bound(most=ON_TILES[width])
            if tiles and name == "native-bf16" and width in ON_TILES
            else None,
        )
        for name in names
        for width in WIDTHS[1:]
    ]


def _faster(names: list[str], shortest: dict[str, list[float]], tiles: bool) -> list[Figure]:
    """Return how much faster the narrow executors read a prompt, and decode with weights of half the size."""
    prefill, one = (shortest["native, prefill"], shortest["native-bf16, 1"])
    figures = [
        _ratio(
            f"{name}: prefill of {CONTEXT} tokens, times faster than native",
            prefill,
            shortest[f"{name}, prefill"],
            Bound(least=PREFILL_SPEEDUP) if tiles and name == "native-bf16" else None,
        )
        for name in names[1:]
    ]
    if "native-int8" in names:
        label = "native-int8: one token, times faster than native-bf16"
        figures.append(
            _ratio(label, one, shortest["native-int8, 1"], Bound(least=DECODING_SPEEDUP))
        )
    return figures


def _ratio(label: str, above: list[float], below: list[float], bound: Bound | None) -> Figure:
    return over_rounds(label, [a / b for a, b in zip(above, below, strict=True)], "x", bound)


def _fill(runner: Runner) -> int:
    """Return a slot that holds the context."""
    slot = runner.acquire()
    runner.forward([Append(slot, range(CONTEXT))])
    runner.commit(slot, range(CONTEXT))
    return slot


def _forward(runner: Runner, slot: int, width: int, keep: int, _repeat: int) -> None:
    runner.forward([Append(slot, range(width), keep=keep)])
    runner.commit(slot, [])
