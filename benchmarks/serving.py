"""Measure the cost of simulations: seconds of one core, memory, and growth with the number of events."""

import json
import subprocess
import sys
from math import log
from typing import NamedTuple

from benchmarks.common import Bound, Figure, Outcome, Setting, over_rounds
from benchmarks.process import measure


class _Case(NamedTuple):
    """A simulation, with the seconds and gigabytes that it may take at most."""

    arguments: tuple[str, ...]
    seconds: Bound | None
    memory: Bound = Bound(most=1)


CASES = {
    "200 devices, 600 s": _Case(("200", "600", "wisp", "own"), Bound(most=4)),
    "10,000 devices, 60 s": _Case(("10000", "60", "wisp", "own"), Bound(most=25)),
    "10,000 devices, 60 s, on a server that keeps up": _Case(
        ("10000", "60", "wisp", "fast"), Bound(most=8)
    ),
    "100,000 devices, 60 s": _Case(("100000", "60", "wisp", "fast"), None, Bound(most=4)),
}
COMPARED = {
    "150 devices, 600 s": ("150", "600", "wisp", "own"),
    "10,000 devices, 60 s, on a server that keeps up": ("10000", "60", "wisp", "fast"),
}
FASTER = Bound(least=10)
"""How many times as many events a second the compiled loop has as the one in Python."""
GROWTH = ("250", "4000")
"""Numbers of devices on a server that keeps up, so that events grow with devices."""
GROWTH_S = "20"
NEAR_LINEAR = Bound(most=1.25)
"""Largest exponent of seconds over events; above 1 because of heaps, which cost a logarithm, and of cache misses."""


class _Cost(NamedTuple):
    """The cost of a simulation, in processor time, which does not depend on other work on the machine."""

    seconds: float
    events: int
    rounds: int


def run(setting: Setting) -> Outcome:
    """Run each simulation in its own process; set-up is not part of its time."""
    cases = [_measure(setting, name, case) for name, case in CASES.items()]
    figures = [figure for case in cases for figure in case]
    compared = [_compare(setting, name, arguments) for name, arguments in COMPARED.items()]
    title = "Simulating many devices on one server, on one core"
    return Outcome(
        title, [*figures, *(figure for pair in compared for figure in pair), _growth(setting)]
    )


def _measure(setting: Setting, name: str, case: _Case) -> list[Figure]:
    costs = [_simulate(case.arguments) for _ in range(setting.rounds)]
    peak = measure(_command(case.arguments)).peak_bytes
    per_round = [cost.seconds / cost.rounds * 1e6 for cost in costs]
    return [
        over_rounds(
            f"{name}: {costs[0].rounds:,} rounds",
            [cost.seconds for cost in costs],
            "s",
            case.seconds,
        ),
        over_rounds(f"{name}: per round", per_round, "µs"),
        Figure(f"{name}: peak memory", peak / 1e9, "GB", case.memory),
    ]


def _compare(setting: Setting, name: str, arguments: tuple[str, ...]) -> list[Figure]:
    """Return the events a second of both loops, which run in turns, and their ratio."""
    native: list[float] = []
    plain: list[float] = []
    for _ in range(setting.rounds):
        for costs, loop in ((native, "native"), (plain, "python")):
            cost = _simulate(arguments, loop)
            costs.append(cost.events / cost.seconds)
    ratios = [fast / slow for fast, slow in zip(native, plain, strict=True)]
    return [
        over_rounds(f"{name}: compiled", native, "events/s"),
        over_rounds(f"{name}: in Python", plain, "events/s"),
        over_rounds(f"{name}: compiled over Python", ratios, "", FASTER),
    ]


def _growth(setting: Setting) -> Figure:
    """Return the slope between the fewest and the most events on logarithmic scales."""
    few, many = (
        [_simulate((devices, GROWTH_S, "wisp", "fast")) for _ in range(setting.rounds)]
        for devices in GROWTH
    )
    exponents = [
        log(large.seconds / small.seconds) / log(large.events / small.events)
        for small, large in zip(few, many, strict=True)
    ]
    span = f"{few[0].events:,} to {many[0].events:,} events"
    return over_rounds(f"exponent of cost from {span}", exponents, "", NEAR_LINEAR)


def _simulate(arguments: tuple[str, ...], loop: str = "native") -> _Cost:
    done = subprocess.run(_command(arguments, loop), capture_output=True, text=True, check=True)
    return _Cost(**json.loads(done.stdout))


def _command(arguments: tuple[str, ...], loop: str = "native") -> list[str]:
    return [sys.executable, "-m", "benchmarks.serving_scene", *arguments, loop]
