"""Benchmark one method under eight names: does a real run name a winner among equals? Optional: it needs SmolLM2."""

from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped
from specbench_kit.api import bench
from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import methods
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.metrics.verdicts import FASTER, SLOWER
from specbench_kit.models.pair import load_pair

NAMES = [f"same-{number}" for number in range(1, 9)]
RUNS = 20
TOKENS = 32


@dataclass(frozen=True)
class Seen:
    """One run: the names that a difference is shown of, and the logarithm of each name's speed beside the mean."""

    claims: list[str]
    speeds: dict[str, float]


def run(setting: Setting) -> Outcome:  # noqa: ARG001
    """Decode the everyday prompts with all names in turns, twenty times."""
    try:
        load_pair("smollm2", device="cpu")
    except SkitError as error:
        raise Skipped(str(error)) from error
    for name in NAMES:
        methods.register(name)(type(name, (FixedK,), {"__doc__": FixedK.__doc__}))
    with TemporaryDirectory() as folder:
        seen = [_once(Path(folder) / str(number)) for number in range(RUNS)]
    offsets = [fmean(each.speeds[name] for each in seen) for name in NAMES]
    within = fmean(stdev(each.speeds[name] for each in seen) for name in NAMES)
    quiet = sum(not each.claims for each in seen)
    figures = [
        Figure(f"runs of {RUNS} that show no difference", quiet, "", Bound(least=RUNS)),
        Figure("widest lasting offset of a name", 100 * max(map(abs, offsets)), "%"),
        Figure("spread of one name's speed from run to run", 100 * within, "%"),
    ]
    shown = [
        f"run {number}: {', '.join(each.claims)}"
        for number, each in enumerate(seen, 1)
        if each.claims
    ]
    note = f"fixed-k:k=4 under {len(NAMES)} names, up to {TOKENS} tokens a request; speeds beside the names' mean."
    return Outcome("The same method eight times in one run", figures, [note, *shown])


def _once(folder: Path) -> Seen:
    result = bench(
        NAMES, "everyday", target="smollm2", device="cpu", max_new_tokens=TOKENS, out=folder
    )
    # A row's label ends with the options.
    rows = {label.partition(" ")[0]: row for label, row in result.compare().overall.items()}
    speeds = {name: log(rows[name].typical_speedup or 1.0) for name in NAMES}
    mean = fmean(speeds.values())
    claims = [
        f"{name} {rows[name].verdict}" for name in NAMES if rows[name].verdict in (FASTER, SLOWER)
    ]
    return Seen(claims, {name: speed - mean for name, speed in speeds.items()})
