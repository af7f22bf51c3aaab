"""Simulate experiments: how often is a verdict on equally fast methods false, and a true difference of 10% found?"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import log

import numpy as np

from benchmarks.common import Bound, Figure, Outcome, Setting
from specbench_kit.decoding.records import RequestRecord, TimeKind
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.rows import TableEntry, choose_reference, rows_of
from specbench_kit.metrics.statistics import Array
from specbench_kit.metrics.typical import LASTING
from specbench_kit.metrics.verdicts import FASTER, SLOWER
from specbench_kit.studies.bench.lanes import turn_order

EXPERIMENTS = 400
SIZES = (10, 20, 40)
METHODS = (2, 8)
NOISE = 0.1
"""Standard deviation of the logarithm of a time: what it is for a request of SmolLM2 on a shared cloud machine."""
SPEEDUP = 1.5
GAIN = 0.1

Noise = Callable[[np.random.Generator, Array], None]
"""Adds to the logarithms of times, [prompts, lanes], of which the first lane is the baseline."""


def _outliers(rng: np.random.Generator, logs: Array) -> None:
    """Let one request in fifty take 1.5 to 4 times as long."""
    logs += np.where(rng.random(logs.shape) < 0.02, np.log(rng.uniform(1.5, 4, logs.shape)), 0)


def _spells(rng: np.random.Generator, logs: Array) -> None:
    """Let a few requests in a row, whichever lanes they are of, take 1.5 to 3 times as long, every fifty or so."""
    prompts, lanes = logs.shape
    visited = [(turn, lane) for turn in range(prompts) for lane in turn_order(lanes, turn)]
    position = int(rng.exponential(50))
    while position < len(visited):
        length, slowness = 1 + int(rng.exponential(3)), log(rng.uniform(1.5, 3))
        for place in visited[position : position + length]:
            logs[place] += slowness
        position += length + int(rng.exponential(50))


def _drift(rng: np.random.Generator, logs: Array) -> None:  # noqa: ARG001
    """Slow the machine down by half, little by little."""
    logs += np.log(np.linspace(1, 1.5, logs.size)[_order(*logs.shape)])


def _by_prompt(rng: np.random.Generator, logs: Array) -> None:
    """Let each method suit some prompts more than others."""
    logs[:, 1:] += rng.normal(0, NOISE, logs[:, 1:].shape)


def _order(prompts: int, lanes: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Return when each lane decodes each prompt: [prompts, lanes]."""
    places = np.empty((prompts, lanes), dtype=np.int64)
    for turn in range(prompts):
        places[turn, turn_order(lanes, turn)] = turn * lanes + np.arange(lanes)
    return places


KINDS: dict[str, Noise | None] = {
    "log-normal": None,
    "outliers": _outliers,
    "spells": _spells,
    "drift": _drift,
    "method x prompt": _by_prompt,
}


@dataclass(frozen=True, slots=True)
class Lasting:
    """What lasts as long as a process: the standard deviation of each lane's `offset` in the logarithm of its times.

    Prompts are decoded once in each of the `processes`; `noise` is the standard deviation of single times.
    """

    offset: float = 0.0
    processes: int = 1
    noise: float = NOISE


TABLES: dict[str, tuple[Sequence[float], Sequence[int]]] = {
    "equal": ((1.0,) * 8, range(1, 9)),
    "all different": ([1 + 0.1 * place for place in range(1, 9)], range(1, 9)),
    "half different": ([1.0] * 4 + [1.2, 1.4, 1.6, 1.8], range(1, 9)),
    "two are the baseline": ([1.0, 1.0, 1.2, 1.4, 1.4, 1.4], [0, 0, 1, 2, 3, 4]),
    "two are one method": ([1.2, 1.2, 1.4, 1.4, 1.5, 1.5], [1, 1, 2, 3, 4, 5]),
}
"""Methods' true speedups, and the lane whose noise each of them has; lane 0 is the baseline's."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of methods, equal or not: do all of its intervals hold, in all and on a typical prompt?"""

    name: str
    noise: str
    prompts: int

    def simulate(self, seed: int) -> tuple[bool, bool]:
        """Simulate one table: do all of its intervals hold, and is a false difference claimed?"""
        speeds, lanes = TABLES[self.name]
        rng = np.random.default_rng([seed, len(speeds), self.prompts])
        logs = rng.normal(0, NOISE, (self.prompts, 1 + max(lanes)))
        if disturb := KINDS[self.noise]:
            disturb(rng, logs)
        plain_s = rng.lognormal(5, 0.8, self.prompts)
        baseline = RequestGroup(_records(plain_s * np.exp(logs[:, 0]), 0))
        units = {str(prompt): prompt for prompt in range(self.prompts)}
        plain = TableEntry(baseline, NO_REQUESTS, units, label="autoregressive", is_baseline=True)
        entries = [plain]
        for number, (speed, lane) in enumerate(zip(speeds, lanes, strict=True)):
            records = _records(plain_s * np.exp(logs[:, lane]) / speed, 0, "modelled")
            group = RequestGroup(records)
            entries.append(TableEntry(group, baseline, units, label=str(number)))
        reference = choose_reference(entries)
        rows = rows_of(entries, reference)
        of_reference = speeds[int(reference.label)]
        all_hold = True
        claims_false = False
        for number, speed in enumerate(speeds):
            row = rows[str(number)]
            true = {"speedup": speed, "typical_speedup": speed}
            claims = [(row.speedup_verdict, speed)]
            if str(number) != reference.label:
                true |= dict.fromkeys(
                    ("relative_speed", "typical_relative_speed"), speed / of_reference
                )
                claims.append((row.verdict, speed / of_reference))
            for metric, ratio in true.items():
                bounds = row.bounds(metric)
                all_hold &= bounds is None or bounds[0] <= ratio <= bounds[1]
            for claim, ratio in claims:
                claims_false |= (claim == FASTER and ratio <= 1) or (claim == SLOWER and ratio >= 1)
        return all_hold, claims_false

    def rates(self, experiments: int) -> tuple[float, float]:
        """Return the shares of tables whose intervals all hold, and of tables with a false verdict."""
        hold, false = np.array([self.simulate(seed) for seed in range(experiments)]).mean(axis=0)
        return float(hold), float(false)


@dataclass(frozen=True, slots=True)
class Scene:
    """Methods on `prompts` prompts, `SPEEDUP` times as fast as their baseline, the first of them faster by `gain`."""

    noise: str
    methods: int
    prompts: int
    gain: float = 0.0
    lasting: Lasting = Lasting()

    def simulate(self, seed: int) -> tuple[bool, bool, float]:
        """Simulate one experiment.

        Is a false difference claimed, is the first method shown to be faster than the second, and which share of the
        speedups' intervals hold?
        """
        rng = np.random.default_rng([seed, self.methods, self.prompts])
        speeds = np.array([1.0] + [SPEEDUP] * self.methods)
        speeds[1] *= 1 + self.gain
        noise = [self._noise(rng) for _ in range(self.lasting.processes)]
        lengths_s = rng.lognormal(5, 0.8, (self.prompts, 1))
        lanes: list[list[RequestRecord]] = [[] for _ in speeds]
        for process, logs in enumerate(noise):
            for lane, seconds in zip(lanes, (lengths_s * np.exp(logs) / speeds).T, strict=True):
                lane += _records(seconds, process)
        baseline, *own = map(RequestGroup, lanes)
        count = self.lasting.processes
        units = {str(prompt): prompt for prompt in range(self.prompts)}
        plain = TableEntry(
            baseline,
            NO_REQUESTS,
            units,
            label="autoregressive",
            is_baseline=True,
            processes=count,
        )
        entries = [plain]
        entries += [
            TableEntry(group, baseline, units, label=str(lane), processes=count)
            for lane, group in enumerate(own, 1)
        ]
        reference = choose_reference(entries)
        rows = rows_of(entries, reference)
        del rows["autoregressive"]
        claims = {
            label: row.verdict for label, row in rows.items() if row.verdict in (FASTER, SLOWER)
        }
        ahead = {label for label, claim in claims.items() if claim == FASTER}
        behind = {label for label, claim in claims.items() if claim == SLOWER}
        is_false = bool(ahead | behind) if not self.gain else "1" in behind or bool(ahead - {"1"})
        is_found = (
            "2" in behind if reference.label == "1" else reference.label == "2" and "1" in ahead
        )
        bounds = [row.bounds("typical_speedup") or (0.0, np.inf) for row in rows.values()]
        hold = np.mean(
            [low <= speed <= high for (low, high), speed in zip(bounds, speeds[1:], strict=True)]
        )
        return is_false, is_found, float(hold)

    def _noise(self, rng: np.random.Generator) -> Array:
        """Return what one process adds to the logarithms of times, [prompts, lanes]."""
        logs = rng.normal(0, self.lasting.noise, (self.prompts, 1 + self.methods))
        if disturb := KINDS[self.noise]:
            disturb(rng, logs)
        if self.lasting.offset:
            logs += rng.normal(0, self.lasting.offset, 1 + self.methods)
        return logs

    def rates(self, experiments: int) -> tuple[float, float, float]:
        """Return the shares of experiments with a false verdict, and with the true one, and of intervals that hold."""
        false, found, hold = np.array([self.simulate(seed) for seed in range(experiments)]).mean(
            axis=0
        )
        return float(false), float(found), float(hold)


def _records(seconds: Array, process: int, time_kind: TimeKind = "measured") -> list[RequestRecord]:
    return [
        RequestRecord(
            str(prompt),
            "",
            [1],
            [2],
            repeat=process,
            e2e_s=float(value),
            ttft_s=float(value),
            time_kind=time_kind,
        )
        for prompt, value in enumerate(seconds)
    ]


LEAST_POWER = {
    ("log-normal", 2, 20): 75.0,
    ("log-normal", 8, 20): 50.0,
    ("outliers", 2, 20): 70.0,
    ("spells", 2, 20): 70.0,
}
"""Per cent of experiments that find the true difference, by kind of noise, methods and prompts."""


OFFSETS = (LASTING, 0.01, 0.03)
PROCESSES = (1, 3, 5)
QUIET_NOISE = 0.03
"""Standard deviation of the logarithm of a time where nothing disturbs the machine, so that lasting offsets count."""
TABLE_NOISE = ("log-normal", "outliers", "method x prompt")
LEAST_POWER_LASTING = {LASTING: 90.0, 0.01: 90.0, 0.03: 50.0}
"""Per cent of experiments in several processes that find the true difference, by the offsets of a lane."""


def run(setting: Setting) -> Outcome:  # noqa: ARG001
    """Check that a table's verdicts err in 5% of experiments, and how often they find a true difference."""
    cases = [(kind, methods, prompts) for kind in KINDS for methods in METHODS for prompts in SIZES]
    scenes = [Scene(*case, gain) for case in cases for gain in (0.0, GAIN)]
    with ProcessPoolExecutor() as pool:
        rates = list(pool.map(partial(_rates, EXPERIMENTS), scenes))
    figures = []
    for case, (false, _, hold), (_, found, _) in zip(cases, rates[::2], rates[1::2], strict=True):
        kind, methods, prompts = case
        name = f"{kind}, {methods} methods, {prompts} prompts"
        # Of 400 experiments at 5%, more than 8.3% are false in one case of a thousand.
        figures.append(Figure(f"false verdicts: {name}", 100 * false, "%", Bound(most=8.25)))
        figures.append(Figure(f"intervals that hold: {name}", 100 * hold, "%", Bound(least=93)))
        bound = Bound(least=LEAST_POWER[case]) if case in LEAST_POWER else None
        figures.append(Figure(f"10% found: {name}", 100 * found, "%", bound))
    lasting = [
        (methods, Lasting(offset, processes, QUIET_NOISE))
        for offset in OFFSETS
        for methods in METHODS
        for processes in PROCESSES
    ]
    scenes = [
        Scene("log-normal", methods, 20, gain, own)
        for methods, own in lasting
        for gain in (0.0, GAIN)
    ]
    with ProcessPoolExecutor() as pool:
        rates = list(pool.map(partial(_rates, EXPERIMENTS), scenes))
    for (methods, own), (false, _, hold), (_, found, _) in zip(
        lasting, rates[::2], rates[1::2], strict=True
    ):
        name = f"lasting offsets of {own.offset:.1%}, {methods} methods, {own.processes} processes"
        # One process shows nothing of what lasts as long as it does, and is taken to differ by so much.
        is_covered = own.processes > 1 or own.offset <= LASTING
        figures.append(
            Figure(
                f"false verdicts: {name}",
                100 * false,
                "%",
                Bound(most=8.25) if is_covered else None,
            )
        )
        figures.append(
            Figure(
                f"intervals that hold: {name}",
                100 * hold,
                "%",
                Bound(least=93) if is_covered else None,
            )
        )
        bound = Bound(least=LEAST_POWER_LASTING[own.offset]) if is_covered else None
        figures.append(Figure(f"10% found: {name}", 100 * found, "%", bound))
    tables = [
        Table(name, noise, prompts) for noise in TABLE_NOISE for name in TABLES for prompts in SIZES
    ]
    with ProcessPoolExecutor() as pool:
        table_rates = list(pool.map(partial(_table_rates, EXPERIMENTS), tables))
    for table, (whole, false) in zip(tables, table_rates, strict=True):
        name = f"{table.noise}, {table.name}, {table.prompts} prompts"
        figures.append(
            Figure(f"tables whose intervals all hold: {name}", 100 * whole, "%", Bound(least=93))
        )
        figures.append(
            Figure(f"tables with a false verdict: {name}", 100 * false, "%", Bound(most=8.25))
        )
    note = (
        f"{EXPERIMENTS} experiments each; times vary by {NOISE:.0%} around those that follow from lengths, which are "
        "log-normal, and by what the name says. Found: the first method is shown to be faster than the second. Lasting "
        f"offsets are of 20 prompts, whose times vary by {QUIET_NOISE:.0%} beside them."
    )
    return Outcome("Verdicts on methods of equal speed, and of a true difference", figures, [note])


def _table_rates(experiments: int, table: Table) -> tuple[float, float]:
    return table.rates(experiments)


def _rates(experiments: int, scene: Scene) -> tuple[float, float, float]:
    return scene.rates(experiments)
