"""Sentences on a reproduced experiment."""

from specbench_kit.reports.stored import Row, Summary
from specbench_kit.reports.writing.formatting import significant, times


def verdict(result: Summary) -> str:
    """Return in one sentence how closely an experiment was reproduced, or what prevents that."""
    parts = [part for part in (_judge_numbers(result), _judge_bounds(result)) if part]
    if not parts:
        return "Nothing to compare: the text of the paper has no number here."
    sentence = "; ".join(text for _, text in parts)
    if all(reached for reached, _ in parts):
        return f"Reproduced: {sentence}."
    return f"Not reproduced: {sentence}. {result['prevented']}".strip()


def _judge_numbers(result: Summary) -> tuple[bool, str] | None:
    """Return whether all numbers lie within the goal, and a phrase that says so; None without numbers."""
    errors = [
        (abs(pair["simulated_over_published"] - 1), pair)
        for pair in result["published"]
        if pair["simulated_over_published"]
    ]
    if not errors:
        return None
    worst, worst_pair = max(errors, key=lambda entry: entry[0])
    if worst <= result["goal"]:
        numbers = f"all {len(errors)} numbers" if len(errors) > 1 else "the one number"
        return True, f"{numbers} within {percent(worst)}" if worst else f"{numbers} to the digit"
    within = sum(error <= result["goal"] for error, _ in errors)
    return False, (
        f"{within} of {len(errors)} numbers lie within {percent(result['goal'])}; the farthest, "
        f"{_full_name(worst_pair, result)}, is {times(worst_pair['simulated_over_published'])} the published one"
    )


def _judge_bounds(result: Summary) -> tuple[bool, str] | None:
    """Return whether all bounds hold that the paper states instead of numbers, and a phrase; None without bounds."""
    bounds = [pair for pair in result["published"] if pair["holds"] is not None]
    if not bounds:
        return None
    if broken := [_full_name(pair, result) for pair in bounds if not pair["holds"]]:
        return False, f"{len(bounds) - len(broken)} of {len(bounds)} statements hold, not {' and '.join(broken)}"
    return True, f"all {len(bounds)} statements hold" if len(bounds) > 1 else "the one statement holds"


def published(pair: Row) -> str:
    """Return the number or the bound as the paper states it, or nothing if its text has neither."""
    return "" if pair["value"] is None else f"{pair['bound']} {significant(pair['value'], 4)}".strip()


def outcome(pair: Row) -> str:
    """Return the simulated over the published number, or whether the bound holds."""
    if pair["holds"] is None:
        return times(pair["simulated_over_published"])
    return "holds" if pair["holds"] else "does not hold"


def _full_name(pair: Row, result: Summary) -> str:
    """Return the series with its point, and the figure if the experiment has several."""
    several = len({pair["metric"] for pair in result["published"]}) > 1
    return f"{series_and_point(pair)}, {short_metric(pair)}" if several else series_and_point(pair)


def short_metric(pair: Row) -> str:
    """Return the last two parts of the metric's path."""
    return ".".join(pair["metric"].split(".")[-2:])


def series_and_point(pair: Row) -> str:
    """Return the series of a number and its point of the grid."""
    point = ", ".join(f"{name} {value}" for name, value in pair["where"].items())
    return f"{pair['series']} ({point})" if point else str(pair["series"])


def percent(share: float) -> str:
    """Return 0.1234 as 12.3 %."""
    return f"{significant(100 * share)} %"
