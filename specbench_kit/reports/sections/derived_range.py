"""The line on what speeds are over the range of derived times, and whether the order of methods
holds over it.
"""

from collections.abc import Sequence

from specbench_kit.deployments.description import DECIDED_ANEW
from specbench_kit.metrics.derived_range import reversing_ends
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.verdicts import FASTER, SLOWER
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.reports.document import code
from specbench_kit.reports.writing.formatting import span, times
from specbench_kit.runs.document import DerivedRange, RunDocument

NAMED = 3
"""Methods whose range the line names; those of the others are in the table of all numbers."""


def of_run(run: RunDocument, summary: RunSummary) -> list[str]:
    """Return one line on the range of a run's speed; empty if its times are not derived."""
    row = summary.overall
    if run.range is None or (row.time_least is None and run.range.missing is None):
        return []
    if row.typical_speedup_least is not None and row.typical_speedup_most is not None:
        speed = f"{_span(row, 'typical_speedup')} the speed of autoregressive decoding"
        turns = (row.typical_speedup_least - 1) * (row.typical_speedup_most - 1) < 0
        parts = [
            speed + (", so that the range decides which of the two is faster" if turns else "")
        ]
    else:
        parts = (
            [f"{_span(row, 'time')} the time that is shown"] if row.time_least is not None else []
        )
    return [_line([*parts, *_decisions([(run, run.range)])])]


def of_comparison(comparison: Comparison) -> list[str]:
    """Return one line on the range of speeds, and whether verdicts hold over it; empty if no times
    are derived.
    """
    runs = [(run.fields, run.fields.range) for run in comparison.runs if run.fields.range]
    if not runs or not any(row.time_least is not None for row in comparison.overall.values()):
        return []
    ends = runs[0][1].ends
    return [_line([*_speeds(comparison), *_verdicts(comparison, ends), *_decisions(runs)])]


def _line(parts: Sequence[str]) -> str:
    return f"DERIVED TIMES: what profiles, host and interconnects may be leaves {'; '.join(parts)}."


def _decisions(runs: Sequence[tuple[RunDocument, DerivedRange]]) -> list[str]:
    """Return what the range does not show: methods that would have decided otherwise, or cannot be
    replayed.
    """
    missing = [
        f"no range of {code(str(run.method))} ({ends.missing})"
        for run, ends in runs
        if ends.missing
    ]
    kept = [run for run, ends in runs if ends.decisions != DECIDED_ANEW]
    if not kept:
        return missing
    planning = dict.fromkeys(code(str(run.method)) for run in kept if "latencies" in run.uses)
    anew = (
        f", also by {', '.join(planning)}, which would have planned for other times"
        if planning
        else ""
    )
    live = f"the rounds are those of this live run{anew}; a trace replayed with --replay decides anew at each end"
    return [*missing, live]


def _speeds(comparison: Comparison) -> list[str]:
    """Return the range of the fastest methods' speedups or, without a baseline, of their time."""
    rows = [
        (series.label, row)
        for series in comparison.series
        if not series.is_baseline
        and (row := comparison.overall[series.label]).time_least is not None
    ]
    paired = [(label, row) for label, row in rows if row.typical_speedup_least is not None]
    if not paired:
        shown = rows or [
            (BASELINE, row) for row in comparison.overall.values() if row.time_least is not None
        ]
        parts = [f"{code(label)} {_span(row, 'time')}" for label, row in shown[:NAMED]]
        return [f"{', '.join(parts)} the time that is shown{_others(len(shown))}"]
    paired.sort(key=lambda pair: -(pair[1].typical_speedup or 0.0))
    parts = [f"{code(label)} {_span(row, 'typical_speedup')}" for label, row in paired[:NAMED]]
    return [f"{', '.join(parts)} the speed of autoregressive decoding{_others(len(paired))}"]


def _others(count: int) -> str:
    return f" ({count - NAMED} more in all numbers)" if count > NAMED else ""


def _span(row: MetricValues, metric: str) -> str:
    return span(times(row.value(f"{metric}_least")), times(row.value(f"{metric}_most")))


def _verdicts(comparison: Comparison, names: Sequence[str]) -> list[str]:
    """Return whether the verdicts on the reference and its rivals hold, and that on it and
    autoregressive decoding.
    """
    rows = comparison.overall
    reference = comparison.reference
    shown = [
        series.label
        for series in comparison.series
        if not series.is_baseline
        and not series.is_bound
        and _is_shown(rows[series.label].typical_relative_speed_least, rows[series.label].verdict)
    ]
    parts = []
    if shown:
        closest = min(shown, key=lambda label: abs((rows[label].typical_relative_speed or 0.0) - 1))
        reversed_by = {
            label: reversing_ends(
                rows[label].typical_relative_speed,
                rows[label].typical_relative_speed_at_ends,
                names,
            )
            or []
            for label in shown
        }
        turning = [label for label in shown if reversed_by[label]]
        parts = [
            f"{code(label)} is {_span(rows[label], 'typical_relative_speed')} as fast as {code(reference)}"
            f"{_reversed_words(reversed_by[label])}"
            for label in (turning or [closest])[:NAMED]
        ]
        if not turning:
            parts[0] += ", and every verdict on a method holds over the whole range"
        elif len(turning) > NAMED:
            parts[-1] += f", and {len(turning) - NAMED} more verdicts do not hold"
    row = rows[reference]
    if _is_shown(row.typical_speedup_least, row.speedup_verdict):
        turned = _reversed_words(
            reversing_ends(row.typical_speedup, row.typical_speedup_at_ends, names) or []
        )
        parts += [f"{code(reference)} against autoregressive decoding{turned}"] if turned else []
    return parts


def _is_shown(least: float | None, verdict: str | None) -> bool:
    """Return whether a ratio has a range, and a verdict that names one side as the faster one."""
    return least is not None and verdict in (FASTER, SLOWER)


def _reversed_words(ends: Sequence[str]) -> str:
    return f": the verdict does not hold with {' or with '.join(ends)}" if ends else ""
