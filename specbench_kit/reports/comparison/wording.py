"""Sentences and cells that every form of a comparison shares."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.setting import sampling_sentence
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, NOT_LOSSLESS, SLOWER, TOO_FEW, UNCHECKED
from specbench_kit.reports.writing import colocation, sampling_check, wording
from specbench_kit.reports.writing.cautions import not_read, result_cautions, resumption_cautions, setting_cautions
from specbench_kit.reports.writing.formatting import ABSENT, count, interval, rate, seconds, share, significant, times
from specbench_kit.reports.writing.markup import code

Row = Mapping[str, Any]

UNSTEADY = 0.1
"""Spread of repeats from which a reader is warned."""
UNDECIDED = (NO_DIFFERENCE, TOO_FEW)
EVEN = "≈"
EVEN_NOTE = (
    f"{EVEN}: no difference from autoregressive decoding is shown, since the interval holds 1 or fewer than "
    f"{FEWEST_UNITS} prompts (or batches of them) were compared."
)


def speedup_cell(row: Row) -> str:
    """`1.62x (1.55–1.70)`, marked where no difference from autoregressive decoding is shown."""
    even = f" {EVEN}" if row.get("speedup_verdict") in UNDECIDED else ""
    return f"{times(row.get('speedup'))}{within(row, 'speedup')}{even}"


def within(row: Row, metric: str) -> str:
    """The metric's interval in brackets, where there is one."""
    bounds = row["intervals"].get(metric)
    return f" ({interval(bounds)})" if bounds else ""


def lossless_cell(row: Row) -> str:
    """`80/80`, with what differs behind it; of sampled outputs whether they follow the target."""
    if "sampling_consistent" in row:
        return sampling_check.CONSISTENT[row["sampling_consistent"]]
    found = row.get("lossless")
    return ", ".join(wording.lossless_parts(found)) if found and found["compared"] else ABSENT


COLUMNS: dict[str, Callable[[Row], str]] = {
    "speedup (95%)": speedup_cell,
    "headroom": lambda row: share(row.get("headroom")),
    "throughput": lambda row: rate(row.get("throughput")),
    "acceptance length": lambda row: significant(row["acceptance_length"]),
    "acceptance": lambda row: share(row["acceptance_rate"]),
    "draft efficiency": lambda row: share(row["draft_efficiency"]),
    "WDT": lambda row: f"{seconds(row['wdt'])} ({share(row['wdt_share'])})" if row["wdt_share"] is not None else ABSENT,
    "TTFT": lambda row: seconds(row["ttft"]["mean"]),
    "TPOT": lambda row: seconds(row["tpot"]["mean"]),
    "ITL p50": lambda row: seconds(row["itl"]["p50"]),
    "ITL p95": lambda row: seconds(row["itl"]["p95"]),
    "ITL p99": lambda row: seconds(row["itl"]["p99"]),
    "lossless": lossless_cell,
}
"""The table of methods; columns without any value are left out."""


NAMED = 3
"""Of many methods, in one sentence."""


def headline(comparison: Comparison) -> str:
    """The result in one sentence, which calls nothing faster than the intervals show."""
    label = comparison.reference
    row = comparison.overall[label]
    first = f"{code(label)}: {_speed(row)}"
    rivals = {one.label for one in comparison.series if not one.is_bound and not one.is_baseline and one.label != label}
    by_verdict = {one: comparison.overall[one].get("verdict") for one in rivals}
    slower = sum(verdict == SLOWER for verdict in by_verdict.values())
    even = [code(one.label) for one in comparison.series if by_verdict.get(one.label) in UNDECIDED]
    ahead = {
        verdict: [code(one.label) for one in comparison.series if by_verdict.get(one.label) == verdict]
        for verdict in (FASTER, NOT_LOSSLESS, UNCHECKED)
    }
    parts = [first]
    parts += [f"{', '.join(named)} {_are(named)} {verdict}" for verdict, named in ahead.items() if named]
    if slower:
        parts.append(f"{slower} of {len(rivals)} other methods {'is' if slower == 1 else 'are'} slower")
    if even:
        parts.append(f"no difference from {_some(even)} is shown")
    return "; ".join([*parts, *_reservations(comparison, rivals)]) + "."


def _speed(row: Row) -> str:
    if row.get("speedup") is None:
        return rate(row.get("throughput"))
    speed = f"{times(row['speedup'])} the speed of autoregressive decoding{within(row, 'speedup')}"
    doubt = wording.DOUBTS.get(row["speedup_verdict"])
    return f"{speed}, {doubt}" if doubt else speed


def _reservations(comparison: Comparison, rivals: Collection[str]) -> list[str]:
    """What limits the verdicts between methods."""
    if not rivals:
        return []
    raw = any(comparison.overall[label].get("raw_times") for label in rivals)
    lone = "raw times, for want of a baseline in every run: drift of the machine is not told from a difference"
    unchecked = "outputs were not checked, so that these methods are held against each other only"
    return [lone] * raw + [unchecked] * (comparison.reference in comparison.unchecked)


def _some(names: Sequence[str]) -> str:
    """The first of many: the table marks them all."""
    others = len(names) - NAMED
    return ", ".join(names) if others < 2 else f"{', '.join(names[:NAMED])} and {others} others"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def cautions(comparison: Comparison) -> list[str]:
    """Everything that must be known before a number is quoted."""
    lines = [f"FORCED COMPARISON: these runs differ in {one}." for one in comparison.overruled]
    for run in comparison.runs:
        lines += setting_cautions(run.fields)
    for one in comparison.series:
        for run in () if one.is_derived else one.runs.values():
            own = [*resumption_cautions(run.fields), *result_cautions(run.summary)]
            lines += [f"{code(one.label)}: {caution}" for caution in own]
    lines += colocation.cautions(code(comparison.reference), comparison.overall[comparison.reference])
    lines += unsteady(comparison)
    lines += changed_machines(comparison)
    lines += [f"The runs differ in {remark}." for remark in comparison.remarks]
    lines += map(not_read, comparison.problems)
    return list(dict.fromkeys(lines))


def unsteady(comparison: Comparison) -> list[str]:
    """Whether the same requests took much longer in one repeat than in another."""
    spreads = [row["repeat_spread"] for row in comparison.overall.values() if row.get("repeat_spread") is not None]
    if not spreads or max(spreads) < UNSTEADY:
        return []
    return [f"UNSTEADY MACHINE: repeats of the same requests differ by up to {share(max(spreads))} of their mean time."]


def changed_machines(comparison: Comparison) -> list[str]:
    """Whether the runs' own baselines differ in speed, which no comparison of speedups shows."""
    return [
        f"MACHINE OR ENGINE CHANGED: the baseline of {code(label)} ran at {times(row['baseline_ratio'])}"
        f"{within(row, 'baseline_ratio')} the speed of {code(comparison.reference)}'s; speeds are compared by each "
        "run's ratio to its own baseline."
        for label, row in comparison.overall.items()
        if row.get("baseline_verdict") in (FASTER, SLOWER)
    ]


def where(comparison: Comparison) -> str:
    """On what all of it was measured, in one line for every figure."""
    run = comparison.runs[0].fields
    models = [str(model.get("name")) for model in (run.get("models") or {}).values() if model]
    finished = max((row["finished"] for row in comparison.overall.values()), default=0)
    parts = [", ".join(comparison.datasets), f"{count(finished)} requests", " + ".join(models)]
    parts += [
        sampling_sentence(run.get("config") or {}),
        wording.batch_sentence(run.get("config") or {}),
    ]
    if run.get("time_kind") == "measured":
        parts.append(wording.hardware_sentence(run.get("hardware") or {}))
    parts.append(" and ".join(dict.fromkeys(wording.time_kind(one.fields) for one in comparison.runs)))
    return ("FORCED: these runs differ. " if comparison.overruled else "") + "; ".join(filter(None, parts))
