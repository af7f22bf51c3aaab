"""Sentences on a reproduced experiment."""

from collections.abc import Sequence

from specbench_kit.reports.document import Row, Summary
from specbench_kit.reports.writing.formatting import significant, times

METRICS = {
    "throughput": "throughput (tokens/s)",
    "tpot_mean": "TPOT (s)",
    "tpot_s": "TPOT (s)",
    "capacity": "capacity (devices)",
    "violation_rate": "share of responses that miss their SLO",
    "fewer_violations": "fewer responses that miss their SLO (share)",
    "compute_share": "share of misses due to the batch itself",
    "server_tokens_per_busy_second": "tokens per busy second of the server",
    "tokens_per_price": "tokens per unit of price",
    "acceptance_length_sd": "acceptance length, standard deviation",
    "over_first": "relative to the first",
    "rmse_s": "RMSE (s)",
    "mae_s": "MAE (s)",
    "max_error_s": "largest error (s)",
    "r2": "R²",
    "adjusted_r2": "adjusted R²",
    "mean_r2": "mean R²",
    "mape": "MAPE",
    "auc": "AUC",
    "a_s": "a (s)",
    "b_compute_s": "b, compute (s)",
    "b_read_s": "b, read (s)",
    "c_s": "c (s)",
}
"""Metrics in words, with units, where their names are not these words."""
WHOLE = ("figures", "overall", "classes", "cost")
"""Parts of a metric's path that say nothing to a reader."""


NOT_PREDICTED = {"input": "inputs", "fitted": "fitted", "identity": "identities"}
"""Roles of numbers that could not have come out differently, in words for several."""


def role_counts(results: Sequence[Summary], role: str) -> tuple[int, int]:
    """Return how many numbers of a role come out in some experiments, and how many were compared."""
    within, compared = (sum(result["roles"][role][count] for result in results) for count in ("within", "compared"))
    return within, compared


def verdict(result: Summary) -> str:
    """Return how many predictions came out, what prevents the others, and what is no prediction."""
    parts = [part for part in (_judge_numbers(result), _judge_bounds(result)) if part]
    others = _not_predicted(result)
    if not parts:
        return f"Nothing is predicted here{': ' + others if others else ', and the text of the paper has no number'}."
    sentence = "; ".join(text for _, text in parts)
    also = f" Not counted: {others}." if others else ""
    if all(reached for reached, _ in parts):
        return f"Predicted: {sentence}.{also}"
    return f"Not predicted: {sentence}. {result['prevented']}".strip() + also


def _not_predicted(result: Summary) -> str:
    """Return how many numbers are no predictions, by what they are."""
    parts = []
    for role, word in NOT_PREDICTED.items():
        counts = result["roles"][role]
        if counts["compared"]:
            parts.append(f"{counts['compared']} {word} ({counts['within']} within the goal)")
    if idle := result["roles"]["predicted"]["passed_by_no_effect"]:
        parts.append(f"{idle} that a result without any effect would meet too")
    return ", ".join(parts)


def _judge_numbers(result: Summary) -> tuple[bool, str] | None:
    """Return whether all predicted numbers lie within the goal, and a phrase that says so; None without numbers."""
    counted = [pair for pair in result["published"] if pair["counted"] and pair["score"] is not None]
    if not counted:
        return None
    worst = max(counted, key=lambda pair: (not pair["within"], abs(pair["score"] - 1)))
    if worst["within"]:
        numbers = f"all {len(counted)} numbers" if len(counted) > 1 else "the one number"
        error = max(abs(pair["score"] - 1) for pair in counted)
        return True, f"{numbers} within {percent(error)}" if error else f"{numbers} to the digit"
    within = sum(pair["within"] for pair in counted)
    effect = "effect" if worst["null"] is not None else "one"
    return False, (
        f"{within} of {len(counted)} numbers lie within {percent(result['goal'])}; the farthest, "
        f"{_full_name(worst, result)}, is {times(worst['score'])} the published {effect}"
    )


def _judge_bounds(result: Summary) -> tuple[bool, str] | None:
    """Return whether all bounds hold that the paper states instead of numbers, and a phrase; None without bounds."""
    bounds = [pair for pair in result["published"] if pair["counted"] and pair["holds"] is not None]
    if not bounds:
        return None
    if broken := [_full_name(pair, result) for pair in bounds if not pair["holds"]]:
        return False, f"{len(bounds) - len(broken)} of {len(bounds)} statements hold, not {' and '.join(broken)}"
    return True, f"all {len(bounds)} statements hold" if len(bounds) > 1 else "the one statement holds"


def duration(wall_s: float) -> str:
    """Return seconds, or minutes from two minutes on."""
    return f"{wall_s:.0f} s" if wall_s < 120 else f"{wall_s / 60:.0f} min"


def totals(results: Sequence[Summary]) -> str:
    """Return in a sentence how many numbers of some experiments are predicted, and how many of these come out."""
    within = sum(result["within"] for result in results)
    compared = sum(result["compared"] for result in results)
    if not compared:
        others = [
            f"{counts[0]} of {counts[1]} {words}"
            for role, words in NOT_PREDICTED.items()
            if (counts := role_counts(results, role))[1]
        ]
        return f"no number is predicted{'; ' if others else ''}{', '.join(others)}{' come out' if others else ''}"
    return f"{within} of {compared} predicted numbers come out"


def role(pair: Row) -> str:
    """Return what a published number is to the experiment, and why a prediction is not counted."""
    if pair["role"] == "fitted":
        return f"fitted: {pair['fitted_to']}"
    return f"{pair['role']}; no effect would do" if pair["passed_by_no_effect"] else str(pair["role"])


def published(pair: Row) -> str:
    """Return the number or the bound as the paper states it, or nothing if its text has neither."""
    return "" if pair["value"] is None else f"{pair['bound']} {significant(pair['value'], 4)}".strip()


def with_interval(pair: Row) -> str:
    """Return the simulated number with its 95% interval over seeds, or nothing without a number."""
    simulated = pair["simulated"] or {}
    text = significant(simulated.get("mean"), 4)
    low = simulated.get("low")
    high = simulated.get("high")
    if low is None or high is None or low == high:
        return text
    return f"{text} ({significant(low)} to {significant(high)})"


def claim_verdict(pair: Row, goal: float) -> str:
    """Return whether a number is met, by how much it is missed, and whether it lies in the interval all the same."""
    if pair["simulated"] is None:
        return "no number of ours"
    if pair["passed_by_no_effect"]:
        return f"{outcome(pair) or 'compared in points'}; not counted, no effect would do"
    if pair["holds"] is not None:
        return outcome(pair)
    how = times(pair["score"]) if pair["score"] is not None else "compared in points"
    if pair["within"]:
        return f"within {percent(goal)}: {how}" if pair["points"] is None else f"within {significant(pair['points'])}"
    low, high = (pair["simulated"].get(end) for end in ("low", "high"))
    inside = low is not None and high is not None and low <= pair["value"] <= high
    return f"not met: {how}" + (", though inside our interval" if inside else "")


def summary_of_role(result: Summary, name: str) -> str:
    """Return how many numbers of an experiment have a role, and how many of them are within the goal."""
    counts = result["roles"][name]
    return f"{counts['within']} of {counts['compared']} within the goal"


def outcome(pair: Row) -> str:
    """Return the simulated over the published number or effect, or whether the bound holds."""
    if pair["holds"] is None:
        return times(pair["score"])
    return "holds" if pair["holds"] else "does not hold"


def _full_name(pair: Row, result: Summary) -> str:
    """Return the series with its point, and the figure if the experiment has several."""
    several = len({pair["metric"] for pair in result["published"]}) > 1
    return f"{series_and_point(pair)}, {metric_in_words(pair)}" if several else series_and_point(pair)


def metric_in_words(pair: Row) -> str:
    """Return the metric with its unit, and the class or part that it is of."""
    *path, name = pair["metric"].split(".")
    if name == "mean" and path:
        *path, name = path
    words = METRICS.get(name, name.replace("_", " "))
    if name == "value":
        # The numbers of an experiment that computes one figure per series; older results do not say which.
        return str(pair.get("measured") or words)
    part = path[-1] if path and path[-1] not in WHOLE else ""
    return f"{words}, class {part}" if part.isdigit() else f"{words}, {part.replace('_', ' ')}" if part else words


def series_and_point(pair: Row) -> str:
    """Return the series of a number and its point of the grid."""
    point = ", ".join(f"{name} {value}" for name, value in pair["where"].items())
    return f"{pair['series']} ({point})" if point else str(pair["series"])


def percent(share: float) -> str:
    """Return 0.1234 as 12.3 %."""
    return f"{significant(100 * share)} %"
