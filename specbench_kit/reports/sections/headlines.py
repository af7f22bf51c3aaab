"""The sentences that state the result of runs, comparisons and profiles."""

from collections.abc import Sequence

from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.verdicts import (
    DOUBTS,
    FASTER,
    NOT_LOSSLESS,
    SAMPLING_UNDECIDED,
    SLOWER,
    UNCHECKED,
    as_allowed,
    is_undecided,
    may_win,
    verdict,
)
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.profilers.saving import ProfileSummary
from specbench_kit.profilers.software import describe
from specbench_kit.reports.document import code
from specbench_kit.reports.sections import baseline, profiles
from specbench_kit.reports.sections.columns import UNDECIDED
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.writing.formatting import (
    count,
    interval,
    rate,
    seconds,
    share,
    significant,
    span,
    times,
)
from specbench_kit.runs.document import RunDocument

NAMED = 3
"""Methods that a sentence names one by one; of more, it gives the number."""


def of_run(run: RunDocument, summary: RunSummary) -> str:
    """Return one run's result in a sentence."""
    overall = summary.overall
    if not overall.finished:
        return "No request finished."
    parts = [
        _speed(overall, run),
        speedup_doubt(summary),
        pipeline_words(overall) or f"acceptance length {significant(overall.acceptance_length)}",
    ]
    if summary.lossless and summary.lossless.compared:
        parts.append(
            f"{summary.lossless.identical} of {summary.lossless.compared} outputs identical"
        )
    parts.append(f"{count(overall.finished)} requests in {time_kind(run)}")
    return f"{', '.join(part for part in parts if part)}."


def pipeline_words(overall: MetricValues) -> str:
    """Return the tokens per step and the hit rate of a pipeline, which has no acceptance length;
    else nothing.
    """
    if overall.tokens_per_step is None:
        return ""
    return f"{significant(overall.tokens_per_step)} tokens per pipeline step, {share(overall.hit_rate)} in flight"


def speedup_doubt(summary: RunSummary) -> str:
    """Return why a run's speedup shows no gain over autoregressive decoding, or nothing if it shows
    one.
    """
    overall = summary.overall
    if overall.speedup is None:
        return ""
    metric = _told_speedup(overall)
    shown = verdict(overall.value(metric), overall.bounds(metric), overall.speedup_units or 0)
    return DOUBTS.get(as_allowed(shown, may_win(summary), undecided=is_undecided(summary)), "")


def of_comparison(comparison: Comparison) -> str:
    """Return the result of several runs in a sentence, which calls nothing faster than the
    intervals show.
    """
    label = comparison.reference
    overall = comparison.overall
    rivals = [
        series.label
        for series in comparison.series
        if not series.is_bound and not series.is_baseline and series.label != label
    ]
    verdicts = {rival: overall[rival].verdict for rival in rivals}
    shown = overall[label].speedup_verdict or ""
    doubts = [DOUBTS.get(shown, "")]
    if label in comparison.undecided and shown != SAMPLING_UNDECIDED:
        doubts.append(DOUBTS[SAMPLING_UNDECIDED])
    run = comparison.runs[0].fields
    parts = [f"{code(label)}: {', '.join(filter(None, [_speed(overall[label], run), *doubts]))}"]
    # A fastest method that is slower than autoregressive decoding is no recommendation.
    if rivals and not comparison.is_named and (overall[label].typical_speedup or 1.0) < 1:
        parts.insert(0, f"no lossless method here is faster than {baseline.words(run)}")
    for better in (FASTER, NOT_LOSSLESS, UNCHECKED, SAMPLING_UNDECIDED):
        names = [code(rival) for rival in rivals if verdicts[rival] == better]
        if names:
            parts.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {better}")
    slower = sum(verdict == SLOWER for verdict in verdicts.values())
    if slower:
        which = f"{slower} of {len(rivals)} other methods" if len(rivals) > 1 else code(rivals[0])
        parts.append(f"{which} {'is' if slower == 1 else 'are'} slower")
    if even := [code(rival) for rival in rivals if verdicts[rival] in UNDECIDED]:
        parts.append(f"no difference from {_first_names(even)} is shown")
    parts += [
        f"{code(name)}: {words}" for name, row in overall.items() if (words := pipeline_words(row))
    ]
    if any(overall[rival].raw_times for rival in rivals):
        parts.append(
            "compared by raw times, because some run has no baseline: a change of the machine's speed would look like "
            "a difference"
        )
    if rivals and label in comparison.unchecked:
        parts.append("outputs were not checked, so these methods are compared only with each other")
    return "; ".join(parts) + "."


def _speed(row: MetricValues, run: RunDocument) -> str:
    if row.speedup is None:
        return rate(row.throughput) if row.throughput else ""
    metric = _told_speedup(row)
    bounds = row.bounds(metric)
    within = f" (95% interval {interval(bounds)})" if bounds else ""
    words = baseline.words(run)
    where = "" if metric == "speedup" else f"{',' * (',' in words)} on a typical prompt"
    return f"{times(row.value(metric))} the speed of {words}{where}{within}"


def _told_speedup(row: MetricValues) -> str:
    """Return the metric that sentences give; summaries of earlier runs have no typical prompt."""
    return "speedup" if row.typical_speedup is None else "typical_speedup"


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names) if more < 2 else f"{', '.join(names[:NAMED])} and {more} others"


def of_profile(profile: ProfileSummary) -> str:
    """Return what was profiled, how long a typical forward takes, and how good the fit is."""
    test = profile.test
    train = profile.train
    subject = f"{profile.model} as {profile.role} on {profile.device} in {profile.dtype}"
    if profile.is_derived and not profile.times:  # as files of 0.2 have none
        return f"{subject}, derived: {profile.reference}."
    if profile.is_derived:
        step = next(time for time in profile.times if (time.requests, time.new) == (1, 1))
        low, high = step.range_s or (step.seconds, step.seconds)
        origin = profiles.origin_in_words(step.origin)
        time = f"a plain step takes {seconds(step.seconds)} ({span(seconds(low), seconds(high))}; {origin})"
        if profile.role == "verifier":
            verification = next(
                time for time in profile.times if (time.requests, time.new) == (1, 5)
            )
            time += f", a verification of 5 tokens {seconds(verification.seconds)}"
        if profile.source == "silicon":
            return f"{subject}, by {profile.reference}: {time}."
        software = describe(profile.software, profile.device)
        return f"{subject}, by the analytic model from its data sheet: {time}; {software}."
    fit = f"test R² {profiles.score(test.r2)} (train {profiles.score(train.r2)}), MAPE {share(test.mape)}"
    typical = profile.typical
    if typical is None:
        return f"{subject}, measured: {fit}."
    many = "" if typical.requests == 1 else f" for each of {typical.requests} requests"
    forward = (
        "a draft step"
        if profile.role == "drafter"
        else f"a verification of {count(typical.new)} tokens"
    )
    where = f"{forward}{many} after {count(typical.cached)} cached tokens"
    return f"{subject}, measured: {where} takes {seconds(typical.seconds)}; fit: {fit}."
