"""The sentences of the report of `skit ab`."""

from collections.abc import Sequence

from specbench_kit.metrics.ab.summary import FIGURES, AbSummary, FigureComparison, LoadSummary, OutputCheck
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, NOT_LOSSLESS, SLOWER, TOO_FEW
from specbench_kit.reports.document import code
from specbench_kit.reports.writing.formatting import count, interval, seconds, share, times

HEADLINE_FIGURE = "e2e"
SAME_LENGTH = 0.02
"""Relative difference of the mean lengths of answers up to which times to the end compare the same work."""
LATE_S = 0.02
"""Delay of a request behind its time of arrival from which the client is called too slow."""


def headline(summary: AbSummary) -> str:
    """Return the result in one sentence: how much faster, at which load, and if the outputs agree."""
    first, second = map(code, summary.names)
    parts = [_at_load(load, comparison) for load in summary.loads if (comparison := _headline_comparison(load))]
    if not parts:
        return f"No request was answered by both {first} and {second}: there is nothing to compare."
    result = f"End to end, {second} against {first}: {'; '.join(parts)}. {outputs_sentence(summary)}"
    # Ratios of times mean little where one server does less work, so this comes first.
    lengths = [_lengths_sentence(load, summary.names) for load in summary.loads if _differ(load)]
    return " ".join([*lengths, result, *_saturation_sentence(summary)])


def _saturation_sentence(summary: AbSummary) -> list[str]:
    """Return the lowest load at which each server is over-saturated, and what was not run for that."""
    parts = [f"{code(name)} at {next(iter(loads))}" for name, loads in summary.saturated.items() if loads]
    if not parts:
        return []
    left_out = f"; not run for that: {', '.join(summary.left_out)}" if summary.left_out else ""
    return [f"Over-saturated: {', '.join(parts)}{left_out}."]


def _differ(load: LoadSummary) -> bool:
    return load.lengths is not None and abs(load.lengths.ratio - 1) > SAME_LENGTH


def _lengths_sentence(load: LoadSummary, names: Sequence[str]) -> str:
    """Return how the lengths of the answers differ under a load."""
    lengths = load.lengths
    assert lengths is not None
    first, second = (f"{tokens:.4g}" for tokens in lengths.mean_tokens)
    return (
        f"**Answers of different lengths at {load.load}: {second} tokens on average from {code(names[1])}, {first} "
        f"from {code(names[0])}** ({count(lengths.equal)} of {count(lengths.pairs)} pairs are equally long), so that "
        "times to the end compare different work."
    )


def _headline_comparison(load: LoadSummary) -> FigureComparison | None:
    return next((entry for entry in load.comparisons if entry.figure == HEADLINE_FIGURE and entry.ratio), None)


def _at_load(load: LoadSummary, comparison: FigureComparison) -> str:
    bounds = f" ({interval(comparison.interval)})" if comparison.interval else ""
    value = f"{times(comparison.ratio)}{bounds}"
    if comparison.verdict in (FASTER, SLOWER):
        return f"**{value} as fast at {load.load}**"
    if comparison.verdict in (NO_DIFFERENCE, TOO_FEW):
        return f"{comparison.verdict} at {load.load}, {value}"
    return f"{value} as fast at {load.load}, but {comparison.verdict.partition('but ')[2]}"


def outputs_sentence(summary: AbSummary) -> str:
    """Return what the correctness gate found, over all loads."""
    checks = [load.outputs for load in summary.loads]
    tests = [check.sampled for check in checks if check.sampled]
    if tests:
        shown = list(dict.fromkeys(name for test in tests for name in test.shown))
        if shown:
            return f"**Sampled outputs have different distributions** ({', '.join(shown)})."
        samples = count(sum(test.samples for test in tests))
        return f"The distributions of {samples} sampled outputs of each server show no difference."
    compared, identical = (sum(getattr(check.both, name) for check in checks) for name in ("compared", "identical"))
    if not compared:
        return "Outputs were not compared."
    if identical == compared:
        return f"All {count(compared)} pairs of outputs are identical."
    outcome = f"{count(compared - identical)} of {count(compared)} pairs of outputs differ"
    if any(check.gate == "different" for check in checks):
        return f"**{outcome}, more than a server differs from itself.**"
    return f"{outcome}, no more than a server differs from itself."


def gate_sentence(check: OutputCheck, names: Sequence[str]) -> str:
    """Return the result of the gate under one load, with how far each server agrees with itself."""
    if check.sampled:
        test = check.sampled
        shown = f"different: {', '.join(test.shown)}; " if test.shown else ""
        return (
            f"{count(test.samples)} samples of {count(test.prompts)} prompts at each server; {shown}chance of such "
            f"differences between equal servers {test.chance:.2g}, shown below {test.level:.2g}"
        )
    if check.gate == "not compared":
        return "not compared"
    floors = [
        f"{code(name)} with itself {agreement.identical} of {agreement.compared}"
        for name in names
        if (agreement := check.repeated.get(name)) and agreement.compared
    ]
    others = [
        f"{code(name)} with itself at other loads {agreement.identical} of {agreement.compared}"
        for name in names
        if (agreement := check.other_loads.get(name)) and agreement.compared
    ]
    return ", ".join([f"identical {check.both.identical} of {check.both.compared}", *floors, *others])


def cautions(summary: AbSummary) -> list[str]:
    """Return what a reader must know before quoting a number."""
    lines = list(summary.cautions)
    if summary.partial:
        done = summary.finished + summary.failed
        lines.append(f"PARTIAL RUN: {count(done)} of {count(summary.planned)} requests are done; --resume goes on.")
    if summary.failed:
        lines.append(f"FAILED REQUESTS: {count(summary.failed)} of {count(summary.planned)}; pairs leave them out.")
    for load in summary.loads:
        lines += _load_cautions(load)
    for name, loads in summary.saturated.items():
        lines += [f"OVER-SATURATED: {name} at {load}, where {reason}." for load, reason in loads.items()]
    return list(dict.fromkeys(lines))


def _load_cautions(load: LoadSummary) -> list[str]:
    lines = []
    if load.outputs.sampled and load.outputs.sampled.shown:
        lines.append(
            f"OUTPUTS DIFFER at {load.load}: {', '.join(load.outputs.sampled.shown)} have other distributions than "
            "chance explains; one of the servers does not sample from the model as the other does."
        )
    elif load.outputs.gate == "different":
        lines.append(
            f"OUTPUTS DIFFER at {load.load}: a faster server does other work, or rounds otherwise; see the divergences."
        )
    if any(entry.verdict == NOT_LOSSLESS for entry in load.comparisons):
        lines.append("A server whose outputs differ cannot win.")
    for name, figures in load.servers.items():
        if "chunks" in figures.counted_by:
            lines.append(
                f"COUNTED BY CHUNKS: {name} does not say how many tokens it sent; a chunk may hold several. Give "
                "--tokenizer."
            )
        if "usage at the end" in figures.counted_by:
            lines.append(
                f"ITL ESTIMATED: {name} states only the number of all tokens; those of a chunk are estimated from its "
                "text. TTFT, TPOT and end-to-end times do not depend on it."
            )
        if figures.cached_tokens:
            lines.append(
                f"CACHED PROMPTS: {name} answered {count(figures.cached_tokens)} prompt tokens at {load.load} from its "
                "prefix cache, which shortens the time to the first token."
            )
        if figures.retried:
            reasons = "; ".join(f"{count(times)} as {reason}" for reason, times in figures.retry_reasons.items())
            lines.append(
                f"Sent again: {count(figures.retried)} requests to {name} at {load.load}"
                + (f" ({reasons})." if reasons else ".")
            )
        if figures.speculation and figures.speculation.doubts:
            lines.append(
                f"IMPLAUSIBLE COUNTS of {name} at {load.load}: {'; '.join(figures.speculation.doubts)}. Do not quote "
                "its acceptance."
            )
        if figures.late_p99_s is not None and figures.late_p99_s > LATE_S:
            lines.append(
                f"LATE ARRIVALS at {load.load}: this client sent requests to {name} up to "
                f"{seconds(figures.late_p99_s)} late (P99); times count from when they were sent."
            )
    return lines


def verdict_note(summary: AbSummary) -> str:
    """Return how to read the ratios."""
    compared = {entry.figure for load in summary.loads for entry in load.comparisons}
    figures = ", ".join(title for figure, title in FIGURES.items() if figure in compared)
    longer = ", or that its rounds commit more tokens" if "acceptance" in compared else ""
    return (
        f"A ratio above 1 means that {code(summary.names[1])} is faster{longer}. Intervals are for {figures} at all "
        f"loads together: with 95% confidence every one of them holds ({share(summary.level)} each). Units are turns: "
        "the requests that one server gets before the other gets the same ones."
    )
