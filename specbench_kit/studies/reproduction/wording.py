"""Sentences on a reproduced experiment."""

from collections.abc import Sequence

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.papers.experiment import Assumed, MainClaim, Published
from specbench_kit.reports.document import code
from specbench_kit.reports.sections.wording import outcome
from specbench_kit.reports.writing.formatting import ABSENT, seconds, significant, times


class RoleCounts(Struct):
    """The numbers of a role that were compared, those within the goal, and those that no effect would meet too."""

    compared: int
    within: int
    passed_by_no_effect: int


class MovedInput(Struct):
    """Another value of an assumed input: the ratio of each simulated to its published number before and after.

    `effect` is the mean change of the ratios; None if no number was simulated both times.
    """

    name: str
    value: str
    ratios: dict[str, tuple[float, float]]
    effect: float | None


class ReproducedExperiment(Struct, kw_only=True):
    """A reproduced experiment in `summary.json`, of which `compared` numbers are counted, `within` within the goal."""

    name: str
    command: str
    summary: str
    source: str
    reading: str
    against: str
    goal: float
    prevented: str
    differs: dict[str, str]
    published: list[ComparedNumber]
    assumed: list[Assumed]
    within: int
    compared: int
    roles: dict[str, RoleCounts]
    options: JsonObject
    sensitivity: list[MovedInput]
    verdict: str
    wall_s: float | None = None


METRICS = {
    "throughput": "throughput (tokens/s)",
    "tpot_mean": "TPOT",
    "tpot_s": "TPOT",
    "capacity": "capacity (devices)",
    "violation_rate": "share of responses that miss their SLO",
    "fewer_violations": "fewer responses that miss their SLO (share)",
    "compute_share": "share of misses due to the batch itself",
    "server_tokens_per_busy_second": "tokens per busy second of the server",
    "tokens_per_price": "tokens per unit of price",
    "acceptance_length_sd": "acceptance length, standard deviation",
    "over_first": "relative to the first",
    "rmse_s": "RMSE",
    "mae_s": "MAE",
    "max_error_s": "largest error",
    "r2": "R²",
    "adjusted_r2": "adjusted R²",
    "mean_r2": "mean R²",
    "mape": "MAPE",
    "auc": "AUC",
    "a_s": "a",
    "b_compute_s": "b, compute",
    "b_read_s": "b, read",
    "c_s": "c",
}
"""Metrics in words, with units but for seconds, which numbers carry, where their names are not these words."""
WHOLE = ("figures", "overall", "classes", "cost")
"""Parts of a metric's path that say nothing to a reader."""


NOT_PREDICTED = {"input": ("input", "inputs"), "fitted": ("fitted", "fitted"), "identity": ("identity", "identities")}
"""Roles of numbers that could not have come out differently, in words for one and for several."""


def predicted_counts(results: Sequence[ReproducedExperiment]) -> tuple[int, int]:
    """Return how many predictions of some experiments come out, and how many were compared."""
    return sum(result.within for result in results), sum(result.compared for result in results)


def role_counts(results: Sequence[ReproducedExperiment], role: str) -> tuple[int, int]:
    """Return how many numbers of a role come out in some experiments, and how many were compared."""
    counts = [result.roles[role] for result in results]
    return sum(count.within for count in counts), sum(count.compared for count in counts)


def verdict(result: ReproducedExperiment) -> str:
    """Return how many predictions came out, what prevents the others, and what is no prediction."""
    parts = [part for part in (_judge_numbers(result), _judge_bounds(result)) if part]
    others = _not_predicted(result)
    if not parts:
        return f"Nothing is predicted here{': ' + others if others else ', and the text of the paper has no number'}."
    sentence = "; ".join(text for _, text in parts)
    also = f" Not counted: {others}." if others else ""
    if all(reached for reached, _ in parts):
        return f"Predicted: {sentence}.{also}"
    reached_by = "Predicted in part" if result.within else "Not predicted"
    return f"{reached_by}: {sentence}. {result.prevented}".strip() + also


def _not_predicted(result: ReproducedExperiment) -> str:
    """Return how many numbers are no predictions, by what they are."""
    parts = []
    for role, words in NOT_PREDICTED.items():
        counts = result.roles[role]
        if counts.compared:
            parts.append(f"{counts.compared} {words[counts.compared > 1]} ({counts.within} within the goal)")
    if idle := result.roles["predicted"].passed_by_no_effect:
        parts.append(f"{idle} that a result without any effect would meet too")
    return ", ".join(parts)


def _judge_numbers(result: ReproducedExperiment) -> tuple[bool, str] | None:
    """Return whether all predicted numbers lie within the goal, and a phrase that says so; None without numbers."""
    counted = [pair for pair in result.published if pair.counted and pair.score is not None]
    if not counted:
        return None
    worst = max(counted, key=lambda pair: (not pair.within, pair.error))
    if worst.within:
        numbers = f"all {len(counted)} numbers" if len(counted) > 1 else "the one number"
        error = max(pair.error for pair in counted)
        return True, f"{numbers} within {percent(error)}" if error else f"{numbers} to the digit"
    within = sum(bool(pair.within) for pair in counted)
    effect = "effect" if worst.null is not None else "one"
    return False, (
        f"{within} of {len(counted)} numbers lie within {percent(result.goal)}; the farthest, "
        f"{_full_name(worst, result)}, is {times(worst.score)} the published {effect}"
    )


def _judge_bounds(result: ReproducedExperiment) -> tuple[bool, str] | None:
    """Return whether all bounds hold that the paper states instead of numbers, and a phrase; None without bounds."""
    bounds = [pair for pair in result.published if pair.counted and pair.holds is not None]
    if not bounds:
        return None
    if broken := [_full_name(pair, result) for pair in bounds if not pair.holds]:
        return False, f"{len(bounds) - len(broken)} of {len(bounds)} statements hold, not {' and '.join(broken)}"
    return True, f"all {len(bounds)} statements hold" if len(bounds) > 1 else "the one statement holds"


def duration(wall_s: float) -> str:
    """Return seconds, or minutes from two minutes on."""
    return f"{wall_s:.0f} s" if wall_s < 120 else f"{wall_s / 60:.0f} min"


def totals(results: Sequence[ReproducedExperiment]) -> str:
    """Return in a sentence how many numbers of some experiments are predicted, and how many of these come out."""
    within, compared = predicted_counts(results)
    if not compared:
        others = [
            f"{counts[0]} of {counts[1]} {words[1]}"
            for role, words in NOT_PREDICTED.items()
            if (counts := role_counts(results, role))[1]
        ]
        return f"no number is predicted{'; ' if others else ''}{', '.join(others)}{' come out' if others else ''}"
    return f"{within} of {compared} predicted numbers come out"


def role(pair: ComparedNumber) -> str:
    """Return what a published number is to the experiment, and why a prediction is not counted."""
    if pair.role == "fitted":
        return f"fitted: {pair.fitted_to}"
    return f"{pair.role}; no effect would do" if pair.passed_by_no_effect else str(pair.role)


def main_claim(claim: MainClaim, results: Sequence[ReproducedExperiment]) -> str:
    """Return in a sentence what a paper claims above all, and what it comes to here or which command tells.

    It is empty where the experiment has no number to compare.
    """
    result = next((result for result in results if result.name == claim.experiment), None)
    if result is None:
        command = code(f"skit reproduce {claim.experiment}")
        return f"The main claim is that {claim.words}; it is not among these experiments: {command} tries it."
    pairs = [pair for pair in result.published if pair.series in claim.series and pair.value is not None]
    printed, found, holds = [], [], []
    for pair in pairs:
        if not claim.is_lead:
            printed.append(f"{pair.bound} {_number(pair, pair.value)}".strip())
            found.append(_number(pair, pair.simulated.mean) if pair.simulated else ABSENT)
            holds.append(bool(pair.within))
        elif pair.ratio_of_ratios is not None:
            printed.append(significant(pair.ratio_of_ratios.published, 3))
            found.append(significant(pair.ratio_of_ratios.simulated, 3))
            holds.append(abs(pair.ratio_of_ratios.ratio - 1) <= result.goal)
    if not holds:
        return ""
    if all(holds):
        outcome_in_words = "It comes out"
    elif any(holds):
        outcome_in_words = f"It comes out in part, {sum(holds)} of {len(holds)} numbers within {percent(result.goal)}"
    else:
        outcome_in_words = f"It does not come out within {percent(result.goal)}"
    read_as = f" for {result.against}" if claim.is_lead else ""
    return (
        f"The main claim is that {claim.words}. {outcome_in_words}: {', '.join(printed)} are printed, and "
        f"{', '.join(found)} found{read_as}."
    )


def published(pair: Published) -> str:
    """Return the number or the bound as the paper states it, or nothing if its text has neither."""
    return "" if pair.value is None else f"{pair.bound} {_number(pair, pair.value, 4)}".strip()


def with_interval(pair: ComparedNumber) -> str:
    """Return the simulated number with its 95% interval over seeds, or nothing without a number."""
    simulated = pair.simulated
    if simulated is None:
        return ABSENT
    text = _number(pair, simulated.mean, 4)
    if simulated.low is None or simulated.high is None or simulated.low == simulated.high:
        return text
    return f"{text} ({_number(pair, simulated.low)} to {_number(pair, simulated.high)})"


def claim_verdict(pair: ComparedNumber, goal: float) -> str:
    """Return whether a number is met, by how much it is missed, and whether it lies in the interval all the same."""
    if pair.simulated is None:
        return "no number of ours"
    if pair.passed_by_no_effect:
        return f"{outcome(pair) or 'compared in points'}; not counted, no effect would do"
    if pair.holds is not None:
        return outcome(pair)
    how = times(pair.score) if pair.score is not None else "compared in points"
    if pair.within:
        return f"within {percent(goal)}: {how}" if pair.points is None else f"within {significant(pair.points)}"
    bounds = pair.simulated.bounds
    inside = bounds is not None and pair.value is not None and bounds[0] <= pair.value <= bounds[1]
    return f"not met: {how}" + (", though inside our interval" if inside else "")


def effects_compared(result: ReproducedExperiment) -> str:
    """Return what the last column compares where it is not the numbers themselves, with the farthest as an example."""
    gains = [pair for pair in result.published if pair.null and pair.simulated and pair.score is not None]
    if not gains:
        return ""
    pair = max(gains, key=lambda pair: pair.error)
    null = pair.null or 0.0
    ours, theirs = ((value or 0.0) - null for value in (pair.simulated and pair.simulated.mean, pair.value))
    return (
        f"Of a number that is {null:g} without any effect, the last column compares what exceeds {null:g}: of "
        f"{series_and_point(pair)}, {significant(ours)} / {significant(theirs)} = {times(pair.score)}."
    )


def summary_of_role(result: ReproducedExperiment, name: str) -> str:
    """Return how many numbers of an experiment have a role, and how many of them are within the goal."""
    counts = result.roles[name]
    return f"{counts.within} of {counts.compared} within the goal"


def _full_name(pair: ComparedNumber, result: ReproducedExperiment) -> str:
    """Return the series with its point, and the figure if the experiment has several."""
    several = len({pair.metric for pair in result.published}) > 1
    return f"{series_and_point(pair)}, {metric_in_words(pair)}" if several else series_and_point(pair)


def metric_in_words(pair: Published) -> str:
    """Return the metric with its unit, and the class or part that it is of."""
    path, name = _path_and_name(pair)
    words = METRICS.get(name, name.removesuffix("_s").replace("_", " "))
    if "shares" in path:
        words = f"share of {words}"
    if name == "value":
        # The numbers of an experiment that computes one figure per series; older results do not say which.
        return pair.measured or words
    part = path[-1] if path and path[-1] not in WHOLE else ""
    return f"{words}, class {part}" if part.isdigit() else f"{words}, {part.replace('_', ' ')}" if part else words


def _path_and_name(pair: Published) -> tuple[list[str], str]:
    """Return the parts that a metric belongs to, and its own name."""
    *path, name = pair.metric.split(".")
    return (path[:-1], path[-1]) if name == "mean" and path else (path, name)


def _number(pair: Published, value: float | None, digits: int = 3) -> str:
    """Return a value of a metric as people read it, a duration with the unit that suits it."""
    path, name = _path_and_name(pair)
    is_duration = (name.endswith("_s") or name == "tpot_mean") and "shares" not in path
    return seconds(value, digits) if is_duration else significant(value, digits)


def series_and_point(pair: Published) -> str:
    """Return the series of a number and its point of the grid."""
    point = ", ".join(f"{name} {value}" for name, value in pair.where.items())
    return f"{pair.series} ({point})" if point else str(pair.series)


def percent(share: float) -> str:
    """Return 0.1234 as 12.3% and 0.1 as 10%: a goal is a round number, not one that was measured to a decimal."""
    number = significant(100 * share)
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}%"
