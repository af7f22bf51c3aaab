"""Sentences that every form of a comparison shares."""

from collections.abc import Container, Mapping
from math import log

from msgspec.structs import replace

from specbench_kit.metrics.gate import resolution
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.setting import sampling_sentence
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, NOT_LOSSLESS, SLOWER
from specbench_kit.reports.document import code
from specbench_kit.reports.sections import colocation, derived_range, machine, wording
from specbench_kit.reports.sections.cautions import (
    no_draft_accepted,
    not_read,
    other_deployments,
    partial_run,
    result_cautions,
    resumption_cautions,
    setting_cautions,
    shorter_drafts,
    tuning_cautions,
)
from specbench_kit.reports.writing.formatting import count, interval, share, significant, times
from specbench_kit.runs.document import LoweredLimit

UNSTEADY = 0.1
"""Spread of repeats from which a reader is warned."""


def _different_lengths(comparison: Comparison, rows: Mapping[str, MethodRow]) -> list[str]:
    """Return a line if answers differ in length, which speedups do not count as a gain or a loss,
    and why they do.
    """
    apart = {label: row for label, row in rows.items() if row.time_ratio and row.speedup}
    if not apart:
        return []
    label = max(
        apart,
        key=lambda label: abs(
            log((apart[label].time_ratio or 1.0) / (apart[label].speedup or 1.0))
        ),
    )
    row = apart[label]
    configs = [run.fields.config for run in comparison.runs]
    reasons = [
        *(["they were sampled"] if any(config.temperature for config in configs) else []),
        *(["verification is lossy"] if any(config.lossy for config in configs) else []),
    ]
    why = " and ".join(reasons) or "outputs are not the same"
    return [
        f"ANSWERS DIFFER IN LENGTH: {why}, so that speedups are of times per token. By total times "
        f"{code(label)} would be {times(row.time_ratio)} where it is {times(row.speedup)}."
    ]


def cautions(comparison: Comparison) -> list[str]:
    """Return everything that must be known before a number is quoted."""
    lines = [
        f"FORCED COMPARISON: these runs differ in {difference}."
        for difference in comparison.overruled
    ]
    limits: dict[str, LoweredLimit] = {}
    for run in comparison.runs:
        limits |= run.fields.lowered_limits
        lines += setting_cautions(
            replace(run.fields, lowered_limits={}, machine=[]), beside_others=True
        )
    fields = [run.fields for run in comparison.runs]
    lines += [
        *tuning_cautions(fields),
        *other_deployments(fields),
        *shorter_drafts(limits),
        *machine.cautions(*fields),
    ]
    lines += _partial_runs(comparison)
    for series in comparison.series:
        for run in () if series.is_derived else series.runs.values():
            # One line says it of all methods.
            result = result_cautions(replace(run.summary, partial=False))
            own = [*resumption_cautions(run.fields), *result]
            lines += [f"{code(series.label)}: {line}" for line in own]
    rows = comparison.overall
    lines += no_draft_accepted({code(label): row for label, row in rows.items()})
    lines += derived_range.of_comparison(comparison)
    reference = comparison.reference
    lines += server_only(comparison)
    lines += _different_lengths(comparison, rows)
    lines += _on_the_server(comparison)
    spread = max(
        (row.repeat_spread for row in rows.values() if row.repeat_spread is not None), default=0.0
    )
    if spread >= UNSTEADY:
        lines.append(
            f"UNSTEADY MACHINE: repeats of the same requests differ by up to {share(spread)} of their mean time."
        )
    for label, row in rows.items():
        if row.baseline_verdict in (FASTER, SLOWER):
            # No comparison of speedups shows this: each is relative to its own run's baseline.
            bounds = row.bounds("baseline_ratio")
            within = f" ({interval(bounds)})" if bounds else ""
            lines.append(
                f"MACHINE OR ENGINE CHANGED: the baseline of {code(label)} ran at {times(row.baseline_ratio)}"
                f"{within} the speed of {code(reference)}'s; speeds are compared by each run's ratio to its own "
                "baseline."
            )
    lines += [f"The runs differ in {remark}." for remark in comparison.remarks]
    lines += map(not_read, comparison.problems)
    return list(dict.fromkeys(lines))


def server_only(comparison: Comparison) -> list[str]:
    """Return a line if drafting beside the server is faster than what is fastest at the edge.

    Bounds, outputs that are others, and methods that draft on the server by their nature do not
    count.
    """
    reference = comparison.reference
    rows = [
        (series.label, row)
        for series in comparison.series
        if not (series.is_bound or series.is_rung or series.drafts_on_server)
        and (row := comparison.overall[series.label]).verdict != NOT_LOSSLESS
    ]
    found = colocation.best_at_server(rows)
    if found is None or found.method == reference:
        # Of one method it is also said below which round trip the edge wins.
        return colocation.cautions(code(reference), comparison.overall[reference])
    return colocation.server_only([found], 1, comparison.runs[0].fields.deployment)


def _on_the_server(comparison: Comparison) -> list[str]:
    """Return a line if the fastest method drafts beside the target by its nature, where others
    draft at the edge.
    """
    series = {one.label: one for one in comparison.series}
    reference = series.get(comparison.reference)
    speeds = {
        label: row.typical_speedup or 0.0
        for label, row in comparison.overall.items()
        if colocation.has_edge(row) and not (series[label].is_bound or series[label].is_rung)
    }
    if reference is None or not reference.drafts_on_server or not speeds:
        return []
    best = max(speeds, key=speeds.__getitem__)
    return [
        f"DRAFTS ON THE SERVER: {code(reference.label)} has its draft model beside the target; the fastest method that "
        f"drafts at the edge is {code(best)}, {times(speeds[best])}."
    ]


def decision_words(comparison: Comparison) -> str:
    """Return when a benchmark that goes on until it is decided was, or that it was not."""
    run = comparison.runs[0].fields
    looks = run.looks
    decided = run.decided
    if not looks:
        return ""
    if not decided:
        return f"Not decided: all prompts were decoded, and the verdicts hold together over {looks} looks at them."
    return (
        f"Decided after {count(decided.requests)} of {count(decided.planned)} requests: every method is shown to "
        f"differ from the fastest or to lie within {share(decided.share)} of it, and the verdicts hold together "
        f"over {looks} looks."
    )


def break_even_words(comparison: Comparison) -> str:
    """Return from how many tokens of a round on the fastest method pays, at what its rounds take;
    nothing of a method without rounds that commit drafts.
    """
    row = comparison.overall[comparison.reference]
    if not row.speedup or row.acceptance_length is None or row.acceptance_length <= 1:
        return ""
    even = row.acceptance_length / row.speedup
    return (
        f"A round of {code(comparison.reference)} commits {significant(row.acceptance_length)} tokens on average; at "
        f"what a round takes, speculation pays from {significant(even)} tokens on."
    )


def power_words(comparison: Comparison) -> str:
    """Return what differences could have been shown, where the fastest is not told from its nearest
    rival.
    """
    rivals = {
        series.label: row
        for series in comparison.series
        if not series.is_bound and not series.is_baseline and series.label != comparison.reference
        if (row := comparison.overall[series.label]).verdict == NO_DIFFERENCE
    }
    found = resolution(rivals.items())
    if found is None:
        return ""
    words = (
        f"Between {code(comparison.reference)} and {code(found.rival)}, which are not told apart, these {found.units} "
        f"prompts show differences from {share(found.smallest)} on in four of five cases"
    )
    if found.needed is None and found.by_process:
        return (
            f"{words}; the two are too close for more prompts alone, since processes differ: more processes may tell "
            "them apart."
        )
    if found.needed is None:
        return f"{words}; the two are too close for any number of prompts."
    return (
        f"{words}; about {count(found.needed)} would tell the two apart, whose speeds differ by {share(found.seen)} on "
        "a typical prompt."
    )


def process_words(comparison: Comparison) -> str:
    """Return what intervals of measured times cover of what lasts as long as a process; empty for
    modelled times.
    """
    is_seen = any(row.process_seen for row in comparison.overall.values())
    return wording.process_words([run.fields for run in comparison.runs], is_seen)


def _partial_runs(comparison: Comparison) -> list[str]:
    """Return one line on all runs that ended early, with the fewest and the most requests that a
    method has.
    """
    partial = [run.summary.requests for run in comparison.runs if run.summary.partial]
    lines = []
    for planned in dict.fromkeys(requests.planned for requests in partial):
        counts = [requests.finished for requests in partial if requests.planned == planned]
        fewest = min(counts)
        most = max(counts)
        lines.append(partial_run(str(most) if fewest == most else f"{fewest} to {most}", planned))
    return lines


def reachable_gap(comparison: Comparison) -> str:
    """Return one line on how much of the oracle's gap the rung below it and the best method close.

    Methods that are faster than the oracle are named instead: it does not bound them. The line is
    empty without a rung, or where the oracle is not shown to beat autoregressive decoding.
    """
    shares = {
        label: row.headroom for label, row in comparison.overall.items() if row.headroom is not None
    }
    oracle = next(
        (row.label for row in comparison.series if row.reads_answers and row.label in shares), None
    )
    rung = next(
        (series.label for series in comparison.series if series.is_rung and series.label in shares),
        None,
    )
    others = [
        series.label for series in comparison.series if not (series.is_bound or series.is_baseline)
    ]
    bounded = [label for label in others if label in shares]
    if oracle is None or rung is None or not bounded or shares[rung] <= 0:
        return ""
    best = max(bounded, key=shares.__getitem__)
    line = (
        f"Below the oracle: {code(rung)} closes {share(shares[rung])} of the gap between autoregressive decoding and "
        f"{code(oracle)}, and {code(best)} {share(shares[best])}."
    )
    limit = comparison.overall[oracle].throughput or 0.0
    faster = [
        code(label) for label in others if (comparison.overall[label].throughput or 0.0) > limit
    ]
    if not faster:
        return line
    verb = "is" if len(faster) == 1 else "are"
    return f"{line} The oracle bounds chains of its drafter that wait for verdicts: {', '.join(faster)} {verb} faster."


def where(comparison: Comparison) -> str:
    """Return what was measured on what, in one line for every figure."""
    run = comparison.runs[0].fields
    models = [str(model.name) for model in run.models.values() if model]
    finished = max((row.finished or 0 for row in comparison.overall.values()), default=0)
    parts = [", ".join(comparison.datasets), f"{count(finished)} requests", " + ".join(models)]
    parts += [sampling_sentence(run.config), wording.batch_sentence(run.config)]
    if run.config.constraint:
        parts.append(f"under the grammar {wording.grammar_sentence(run.config)}")
    if run.time_kind == "measured":
        parts.append(wording.hardware_sentence(run.hardware))
    parts.append(
        " and ".join(dict.fromkeys(wording.time_kind(run.fields) for run in comparison.runs))
    )
    return ("FORCED: these runs differ. " if comparison.overruled else "") + "; ".join(
        filter(None, parts)
    )


def short_labels(comparison: Comparison) -> dict[str, str]:
    """Return what the table calls each row: the method's name, or its label where rows share the
    name.
    """
    names = [series.name for series in comparison.series]
    return {
        series.label: series.name if names.count(series.name) == 1 else series.label
        for series in comparison.series
    }


def options_note(comparison: Comparison, labels: Container[str] | None = None) -> str:
    """Return the options that the table leaves out of its rows, or of those with these labels."""
    names = short_labels(comparison).items()
    left_out = [
        label for label, name in names if name != label and (labels is None or label in labels)
    ]
    return f"options: {'; '.join(left_out)}" if left_out else ""
