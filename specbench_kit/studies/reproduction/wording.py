"""Sentences on a reproduced experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from specbench_kit.core.option import OptionValues
from specbench_kit.papers.comparison import (
    ComparedNumber,
    PrintedNumber,
    predictions,
    printed_numbers,
)
from specbench_kit.papers.experiment import PREDICTED, Assumed, MainClaim, Published
from specbench_kit.reports.document import code
from specbench_kit.reports.sections.wording import outcome
from specbench_kit.reports.writing.formatting import ABSENT, seconds, significant, times


class RoleCounts(Struct):
    """Printed numbers of a role. One that is tried under several assumptions counts once, and is
    within the goal if it is under all of them.
    """

    compared: Annotated[int, Meta(description="numbers that were compared")]
    within: Annotated[int, Meta(description="numbers within the goal")]
    passed_by_no_effect: Annotated[
        int, Meta(description="compared numbers that a result without any effect would meet too")
    ]
    idle_missed: Annotated[
        int, Meta(description="numbers of these that are not within the goal")
    ] = 0


class MovedInput(Struct):
    """Another value of an assumed input, and what it changes."""

    name: Annotated[str, Meta(description="what is assumed")]
    value: Annotated[str, Meta(description="the other value")]
    ratios: Annotated[
        dict[str, tuple[float, float]],
        Meta(
            description="simulated / published number with the assumed and with the other value, by number"
        ),
    ]
    effect: Annotated[
        float | None,
        Meta(
            description="mean change of these ratios, a factor; null if no number was simulated both times"
        ),
    ]


class ReproducedExperiment(Struct, kw_only=True):
    """A reproduced experiment.

    A prediction is a number or a bound that the paper prints, once even where `variants` try it
    under several assumptions.
    """

    name: Annotated[str, Meta(description="name of the experiment, paper/name")]
    command: Annotated[str, Meta(description="command of skit that runs it")]
    summary: Annotated[str, Meta(description="the experiment in words")]
    source: Annotated[str, Meta(description="where the paper shows it")]
    reading: Annotated[str, Meta(description="what the comparison tells")]
    against: Annotated[
        str, Meta(description="series that all ratios are taken to; empty if there is none")
    ]
    goal: Annotated[float, Meta(description="share by which a number may be off")]
    prevented: Annotated[
        str,
        Meta(
            description="what prevents that all numbers are within the goal; empty if nothing does"
        ),
    ]
    differs: Annotated[
        dict[str, str],
        Meta(description="inputs of the paper that are different here, each with the reason"),
    ]
    published: Annotated[
        list[ComparedNumber], Meta(description="published numbers beside the simulated ones")
    ]
    assumed: Annotated[list[Assumed], Meta(description="inputs that the paper does not give")]
    within: Annotated[int, Meta(description="predictions that are within the goal")]
    compared: Annotated[
        int, Meta(description="predictions that were compared, of those that could have failed")
    ]
    roles: Annotated[
        dict[str, RoleCounts], Meta(description="numbers by what they are to the experiment")
    ]
    options: Annotated[OptionValues, Meta(description="options that the command ran with")]
    sensitivity: Annotated[
        list[MovedInput],
        Meta(description="other values of assumed inputs; empty if none were tried"),
    ]
    verdict: Annotated[str, Meta(description="what came out, in words")]
    wall_s: Annotated[
        float | None,
        Meta(description="seconds that the experiment took; null if that is not known"),
    ] = None
    changes: Annotated[
        dict[str, str],
        Meta(
            description="inputs that were changed, each with its value and that of the experiment"
        ),
    ] = {}
    """The inputs that `--set` changed, each with its value and that of the experiment."""
    variants: Annotated[
        tuple[tuple[str, ...], ...],
        Meta(description="series that stand for one row of the paper under different assumptions"),
    ] = ()
    replaced: Annotated[
        dict[str, str],
        Meta(
            description="new names of series that changed inputs made something else than the paper's"
        ),
    ] = {}

    def predictions(self) -> list[PrintedNumber]:
        """Return the printed numbers and bounds that count."""
        return predictions(self.published, self.variants)


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
"""Metrics in words, with units but for seconds, which numbers carry, where their names are not
these words.
"""
WHOLE = ("figures", "overall", "classes", "cost")
"""Parts of a metric's path that say nothing to a reader."""


NOT_PREDICTED = {
    "input": ("input", "inputs"),
    "fitted": ("fitted", "fitted"),
    "half fitted": ("half fitted", "half fitted"),
    "identity": ("identity", "identities"),
}
"""Roles of numbers that could not have come out differently, in words for one and for several."""


def predicted_counts(results: Sequence[ReproducedExperiment]) -> tuple[int, int]:
    """Return how many predictions of some experiments come out, and how many were compared."""
    return sum(result.within for result in results), sum(result.compared for result in results)


def role_counts(results: Sequence[ReproducedExperiment], role: str) -> tuple[int, int]:
    """Return how many numbers of a role are within the goal in some experiments, and how many were
    compared.
    """
    counts = [result.roles[role] for result in results]
    return sum(count.within for count in counts), sum(count.compared for count in counts)


MOST_NAMED = 4
"""Numbers of a kind that a verdict names; it counts the others."""
LEAST_EFFECT = 0.05
"""The share of a published effect below which none was found."""


def verdict(result: ReproducedExperiment) -> str:
    """Return how many predictions came out, how far the others are off and why, and what is no
    prediction.
    """
    counted = result.predictions()
    others = _not_predicted(result)
    if not counted and result.replaced:
        return "Nothing is judged here: what ran is not the paper's, since its inputs were changed."
    if not counted:
        return f"Nothing is predicted here{': ' + others if others else ', and the text of the paper has no number'}."
    also = f" Not counted: {others}." if others else ""
    within = sum(number.is_met for number in counted)
    if within == len(counted):
        predicted = (
            f"all {len(counted)} predictions come out"
            if len(counted) > 1
            else "the one prediction comes out"
        )
        return f"Predicted: {predicted} ({_all_met(counted)}).{also}"
    reached_by = "Predicted in part" if within else "Not predicted"
    sentences = [f"{within} of {len(counted)} predictions come out", *_misses(result, counted)]
    changed = any(key != "seeds" for key in result.changes)
    unchanged = "Of the unchanged inputs: " if changed and result.prevented else ""
    said = f"{unchanged}{result.prevented}"
    return f"{reached_by}: {'. '.join(sentences)}. {said}".strip() + also


def _not_predicted(result: ReproducedExperiment) -> str:
    """Return how many numbers are no predictions, by what they are."""
    parts = []
    for role, words in NOT_PREDICTED.items():
        counts = result.roles[role]
        if counts.compared:
            parts.append(
                f"{counts.compared} {words[counts.compared > 1]} ({counts.within} within the goal)"
            )
    predicted = result.roles[PREDICTED]
    if idle := predicted.passed_by_no_effect:
        missed = f" ({predicted.idle_missed} of them missed here)" if predicted.idle_missed else ""
        parts.append(f"{idle} that a result without any effect would meet too{missed}")
    return ", ".join(parts)


def _all_met(counted: Sequence[PrintedNumber]) -> str:
    """Return how near the numbers are that all come out, and that bounds hold."""
    pairs = [pair for number in counted for pair in number.compared]
    errors = [pair.error for pair in pairs if not pair.bound and pair.points is None]
    points = [pair.points for pair in pairs if pair.points is not None]
    parts = []
    if errors:
        parts.append(
            f"numbers within {percent(max(errors))}" if max(errors) else "numbers to the digit"
        )
    if points:
        parts.append(f"small numbers within {significant(max(points))}")
    if any(pair.bound for pair in pairs):
        parts.append("what is stated as a bound holds")
    return ", ".join(parts)


def _misses(result: ReproducedExperiment, counted: Sequence[PrintedNumber]) -> list[str]:
    """Return phrases on the numbers that are missed: the farthest as a ratio and in points, bounds,
    and in part.
    """
    missed = [pair for pair in result.published if pair.role == PREDICTED and pair.within is False]
    relative = [pair for pair in missed if pair.score is not None]
    in_points = [pair for pair in missed if pair.points is not None]
    named = []
    if relative:
        named.append(("the farthest is", max(relative, key=lambda pair: pair.error)))
    if in_points:
        named.append(("the farthest in points is", max(in_points, key=_distance)))
    if len(named) > 1 and named[0][1] is named[1][1]:
        named = [("the farthest, in points too, is", named[0][1])]
    phrases = []
    if named:
        goal = f"a number comes out within {percent(result.goal)}"
        goal += ", or within the points that are stated for small ones" if in_points else ""
        farthest = "; ".join(
            f"{words} {_full_name(pair, result)}: {_how_far(pair)}" for words, pair in named
        )
        phrases.append(f"{_sentence(goal)}; {farthest}")
    broken = [number for number in counted if number.compared[0].bound and not number.is_met]
    if broken:
        listed = [_broken_bound(number, result) for number in broken[:MOST_NAMED]]
        more = f"; and {len(broken) - MOST_NAMED} more" if len(broken) > MOST_NAMED else ""
        phrases.append(f"Bounds that do not hold: {'; '.join(listed)}{more}")
    in_part = [number for number in counted if 0 < number.times_met < len(number.compared)]
    if in_part:
        listed = [_met_in_part(number) for number in in_part[:MOST_NAMED]]
        more = f"; and {len(in_part) - MOST_NAMED} more" if len(in_part) > MOST_NAMED else ""
        phrases.append(
            f"Under one assumption only, which does not count, comes out: {'; '.join(listed)}{more}"
        )
    return phrases


def _broken_bound(number: PrintedNumber, result: ReproducedExperiment) -> str:
    """Return a bound that does not hold under every assumption, with what was found where it does
    not.
    """
    broken = [pair for pair in number.compared if not pair.within]
    if len(number.compared) == 1:
        return f"{_full_name(broken[0], result)}, {published(broken[0])}: ours {_mean(broken[0])}"
    found = " and ".join(f"{_mean(pair)} for '{series_and_point(pair)}'" for pair in broken)
    return f"{metric_in_words(broken[0])}, {published(broken[0])}: ours {found}"


def _met_in_part(number: PrintedNumber) -> str:
    """Return a number that comes out under some assumptions, and which these are."""
    met = [pair for pair in number.compared if pair.within]
    under = " and ".join(f"'{series_and_point(pair)}'" for pair in met)
    return f"{metric_in_words(met[0])}, {published(met[0])} ({under})"


def _sentence(text: str) -> str:
    """Return a phrase that begins a sentence; `capitalize` would lower the names in it."""
    return text[:1].upper() + text[1:]


def _distance(pair: ComparedNumber) -> float:
    """Return how far a simulated number is from the published one."""
    return abs((pair.simulated.mean if pair.simulated else 0.0) - (pair.value or 0.0))


def _mean(pair: ComparedNumber) -> str:
    if pair.simulated is None:
        return ABSENT
    before = f"{_number(pair, pair.unchanged.mean)} → " if pair.unchanged else ""
    return before + _number(pair, pair.simulated.mean)


def _how_far(pair: ComparedNumber) -> str:
    """Return in words what is printed and found, with the ratio of both and the share of the
    effect.
    """
    words = [f"{_mean(pair)} where {published(pair)} is printed"]
    if pair.simulated_over_published is not None:
        words.append(times(pair.simulated_over_published))
    if effect := effect_in_words(pair):
        words.append(effect)
    return ", ".join(words) + (" (not counted)" if not pair.counted else "")


def effect_in_words(pair: ComparedNumber) -> str:
    """Return how much of a published effect was found; nothing of a number that states none."""
    if pair.effect_found is None or pair.value is None or pair.null is None:
        return ""
    effect = "gain" if pair.value > pair.null else "effect"
    if pair.effect_found < LEAST_EFFECT:
        return f"no {effect} found"
    return f"{percent(pair.effect_found)} of the {effect}"


def duration(wall_s: float) -> str:
    """Return seconds, or minutes from two minutes on."""
    return f"{wall_s:.0f} s" if wall_s < 120 else f"{wall_s / 60:.0f} min"


def totals(results: Sequence[ReproducedExperiment]) -> str:
    """Return in a sentence how many predictions of some experiments there are, and how many of
    these come out.
    """
    within, compared = predicted_counts(results)
    if not compared:
        others = [
            f"{counts[0]} of {counts[1]} {words[1]}"
            for role, words in NOT_PREDICTED.items()
            if (counts := role_counts(results, role))[1]
        ]
        within_goal = f"; {', '.join(others)} are within the goal" if others else ""
        return f"no number is predicted{within_goal}"
    return f"{within} of {compared} predictions come out"


def role(pair: ComparedNumber, variants: Sequence[Sequence[str]] = ()) -> str:
    """Return what a published number is to its experiment, if it is tried several times, and if it
    is not counted.
    """
    if pair.fitted_to:
        return f"{pair.role}: {pair.fitted_to}"
    several = next((row for row in variants if pair.series in row), ())
    tried = f", 1 of {len(several)} assumptions" if several and pair.role == PREDICTED else ""
    return f"{pair.role}{tried}" + (
        "; no effect would do" if pair.role == PREDICTED and pair.passed_by_no_effect else ""
    )


class _Lead(NamedTuple):
    """By how much one side is ahead of another, `before` inputs were changed if any were."""

    printed: float
    found: float
    before: float | None


@dataclass(frozen=True)
class _ClaimedNumber:
    """One number of a main claim: its name, what is printed and found, and whether it comes out.

    `is_met` is None of a number that is no prediction, and `not_judged` says what it is.
    """

    name: str
    printed: str
    found: str
    is_met: bool | None
    not_judged: str = ""
    lead: "_Lead | None" = None

    @property
    def is_reversed(self) -> bool:
        """Whether the side that is ahead in the paper is behind here, or the other way round."""
        return self.lead is not None and (self.lead.printed - 1) * (self.lead.found - 1) < 0

    def words(self) -> str:
        """Return the number in words."""
        why = f" ({self.not_judged})" if self.not_judged else ""
        return f"{self.name}: {self.printed} printed, ours {self.found}{why}"


def main_claim(
    claim: MainClaim, results: Sequence[ReproducedExperiment], terms: Mapping[str, str] = {}
) -> str:
    """Return in a sentence what a paper claims above all, and what it comes to here or which
    command tells.

    Only predictions are judged. `terms` say what names of series stand for. The sentence is empty
    where the experiment has no number to compare.
    """
    result = next((result for result in results if result.name == claim.experiment), None)
    if result is None:
        command = code(f"skit reproduce {claim.experiment}")
        return f"The main claim is that {claim.words}; it is not among these experiments: {command} tries it."
    pairs = _pairs_of_claim(claim, result)
    if replaced := _not_of_the_paper(claim, result):
        return (
            f"The main claim is that {claim.words}. It is not judged: '{replaced}' is not the "
            "paper's, since its inputs were changed."
        )
    numbers = _numbers_of_claim(claim, result)
    if not numbers:
        return ""
    series = [result.against] if claim.is_lead else [name for name in claim.series if name in terms]
    meaning = [f"'{name}' means: {terms[name]}" for name in series if name in terms]
    read_as = f", for '{result.against}'" if claim.is_lead else ""
    explained = f" {'. '.join(meaning)}." if meaning else ""
    listed = "; ".join(number.words() for number in numbers)
    others = (
        "".join(
            _under_variant(name, pairs, result, terms)
            for name in [*_variants(result), *_not_printed(result)]
        )
        if claim.is_lead
        else ""
    )
    return (
        f"The main claim is that {claim.words}. {_claim_outcome(numbers, result.goal)}{read_as}: {listed}.{others}"
        f"{explained}"
    )


def claim_in_a_line(claim: MainClaim, title: str, results: Sequence[ReproducedExperiment]) -> str:
    """Return in one short sentence what a paper's main claim comes to, or which command tells."""
    result = next((result for result in results if result.name == claim.experiment), None)
    if result is None:
        command = code(f"skit reproduce {claim.experiment}")
        return f"{title}'s main claim is not among these experiments: {command} tries it."
    if _not_of_the_paper(claim, result):
        said = "it is not judged, since changed inputs made its series something else"
    else:
        numbers = _numbers_of_claim(claim, result)
        said = _claim_outcome(numbers, result.goal) if numbers else "no number of it was compared"
        kinds = dict.fromkeys(number.not_judged for number in numbers)
        if numbers and all(kinds):
            said += f" ({', '.join(kinds)})"
        said += _leads_in_words([number.lead for number in numbers if number.lead])
    read_as = f", for '{result.against}'" if claim.is_lead and not result.replaced else ""
    return f"{title}'s main claim, that {claim.words}: {said[:1].lower()}{said[1:]}{read_as}."


def _leads_in_words(leads: Sequence[_Lead]) -> str:
    """Return by how much a side is ahead in print and here; nothing without such numbers."""
    if not leads:
        return ""
    before = [lead.before for lead in leads if lead.before is not None]
    ours = [_span(values) for values in (before, [lead.found for lead in leads]) if values]
    return f" (printed {_span([lead.printed for lead in leads])}, ours {' → '.join(ours)})"


def _span(values: Sequence[float]) -> str:
    ends = [significant(value, 3) for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def _numbers_of_claim(claim: MainClaim, result: ReproducedExperiment) -> list[_ClaimedNumber]:
    """Return the numbers of a main claim that are printed."""
    pairs = _pairs_of_claim(claim, result)
    if claim.is_lead:
        return _claimed_leads(pairs, result)
    return [_claimed(number, result) for number in printed_numbers(pairs, result.variants)]


def _pairs_of_claim(claim: MainClaim, result: ReproducedExperiment) -> list[ComparedNumber]:
    return [
        pair for pair in result.published if pair.series in claim.series and pair.value is not None
    ]


def short_verdict(result: ReproducedExperiment) -> str:
    """Return how many predictions come out and which is the farthest, without the reasons."""
    counted = result.predictions()
    if not counted:
        return result.verdict
    misses = _misses(result, counted)
    return f"{_sentence('. '.join([totals([result]), *misses[:1]]))}."


def _not_of_the_paper(claim: MainClaim, result: ReproducedExperiment) -> str:
    """Return a series of a main claim that changed inputs made something else; nothing if none
    is.
    """
    of_claim = [result.replaced[name] for name in claim.series if name in result.replaced]
    if claim.is_lead and result.against in result.replaced.values():
        return result.against
    return of_claim[0] if of_claim else ""


def _variants(result: ReproducedExperiment) -> list[str]:
    """Return the other series that stand for the same row of the paper as the reference."""
    return [
        name
        for several in result.variants
        if result.against in several
        for name in several
        if name != result.against
    ]


def _not_printed(result: ReproducedExperiment) -> list[str]:
    """Return the series that were simulated and of which the paper prints nothing."""
    printed = {pair.series for pair in result.published if pair.value is not None}
    return [
        name
        for name in dict.fromkeys(str(pair.series) for pair in result.published)
        if name not in printed
    ]


def _under_variant(
    name: str,
    pairs: Sequence[ComparedNumber],
    result: ReproducedExperiment,
    terms: Mapping[str, str],
) -> str:
    """Return in a sentence by how much a variant of the reference is ahead of the series of a
    claim.
    """
    own = {
        (number.metric, frozenset(number.where.items())): number.simulated.mean
        for number in result.published
        if number.series == name and number.simulated is not None
    }
    leads = []
    for pair in pairs:
        variant = own.get((pair.metric, frozenset(pair.where.items())))
        if variant is not None and pair.simulated is not None and pair.simulated.mean:
            point = ", ".join(map(str, pair.where.values())) or str(pair.series)
            leads.append(f"{point}: {significant(variant / pair.simulated.mean, 3)}")
    meaning = f", {terms[name]}," if name in terms else ""
    if name in _not_printed(result):
        meaning = f"{meaning or ','} of which the paper prints no number,"
    return f" With '{name}'{meaning} ours is {', '.join(leads)}." if leads else ""


def _claim_outcome(numbers: Sequence[_ClaimedNumber], goal: float) -> str:
    """Return what the predictions of a main claim come to."""
    judged = [number for number in numbers if number.is_met is not None]
    holds = [bool(number.is_met) for number in judged]
    if not holds:
        return "It is not judged, since none of its numbers is a prediction"
    if all(number.is_reversed for number in judged):
        return "It does not come out, and its direction is reversed"
    if all(holds):
        return "It comes out"
    if any(holds):
        return (
            f"It comes out in part, {sum(holds)} of {len(holds)} predictions within {percent(goal)}"
        )
    return f"It does not come out within {percent(goal)}"


def _claimed(number: PrintedNumber, result: ReproducedExperiment) -> _ClaimedNumber:
    """Return a number of a main claim, with what is found under each assumption if there are
    several.
    """
    first = number.compared[0]
    if len(number.compared) > 1:
        name = metric_in_words(first)
        found = " and ".join(
            f"{_mean(pair)} for '{series_and_point(pair)}'" for pair in number.compared
        )
    else:
        name, found = _full_name(first, result), _mean(first)
    not_judged = "" if first.counted or first.simulated is None else role(first)
    return _ClaimedNumber(
        name, _printed(first), found, number.is_met if first.counted else None, not_judged
    )


def _claimed_leads(
    pairs: Sequence[ComparedNumber], result: ReproducedExperiment
) -> list[_ClaimedNumber]:
    """Return by how much the reference series is ahead; a lead of or over a fitted number is not
    judged.
    """
    fitted = {pair.series for pair in result.published if pair.fitted_to}
    leads = []
    for pair in pairs:
        ratios = pair.ratio_of_ratios
        if ratios is not None:
            is_judged = pair.role == PREDICTED and result.against not in fitted
            is_met = abs(ratios.ratio - 1) <= result.goal if is_judged else None
            name = ", ".join(map(str, pair.where.values())) or str(pair.series)
            before = _lead_before(pair, result)
            ours = significant(ratios.simulated, 3)
            digits = (
                significant(ratios.published, 3),
                ours if before is None else f"{significant(before, 3)} → {ours}",
            )
            not_judged = "" if is_judged else "half fitted"
            lead = _Lead(ratios.published, ratios.simulated, before)
            leads.append(_ClaimedNumber(name, *digits, is_met, not_judged, lead))
    return leads


def _lead_before(pair: ComparedNumber, result: ReproducedExperiment) -> float | None:
    """Return by how much the reference series was ahead before inputs were changed; None if none
    was.
    """
    base = next(
        (
            other.unchanged
            for other in result.published
            if (other.series, other.metric) == (result.against, pair.metric)
            and other.where == pair.where
        ),
        None,
    )
    if base is None or pair.unchanged is None or not pair.unchanged.mean:
        return None
    return base.mean / pair.unchanged.mean


def _printed(pair: Published) -> str:
    """Return a number or a bound as the paper states it, to three digits."""
    return f"{pair.bound} {_number(pair, pair.value)}".strip()


def published(pair: Published) -> str:
    """Return the number or the bound as the paper states it, or nothing if its text has neither."""
    return "" if pair.value is None else f"{pair.bound} {_number(pair, pair.value, 4)}".strip()


def with_interval(pair: ComparedNumber) -> str:
    """Return the simulated number with its 95% interval over seeds, or nothing without a number.

    Of an experiment with changed inputs the number before the change stands first.
    """
    simulated = pair.simulated
    if simulated is None:
        return ABSENT
    before = f"{_number(pair, pair.unchanged.mean, 4)} → " if pair.unchanged else ""
    text = f"{before}{_number(pair, simulated.mean, 4)}"
    if simulated.low is None or simulated.high is None or simulated.low == simulated.high:
        return text
    return f"{text} ({_number(pair, simulated.low)} to {_number(pair, simulated.high)})"


def claim_verdict(pair: ComparedNumber, goal: float) -> str:
    """Return whether a number is met, by how much it is missed, and whether it lies in the interval
    all the same.
    """
    if pair.simulated is None:
        return "no number of ours"
    if pair.holds is not None:
        judged = outcome(pair)
    else:
        is_ratio = pair.simulated_over_published is not None
        parts = [
            outcome(pair) if is_ratio else f"{significant(_distance(pair))} apart",
            effect_in_words(pair),
        ]
        bounds = pair.simulated.bounds
        inside = (
            bounds is not None and pair.value is not None and bounds[0] <= pair.value <= bounds[1]
        )
        met = (
            f"within {percent(goal)}"
            if pair.points is None
            else f"within {significant(pair.points)}"
        )
        judged = f"{met if pair.within else 'not met'}: {', '.join(filter(None, parts))}"
        judged += ", though inside our interval" if inside and not pair.within else ""
    return f"{judged}; not counted, no effect would do" if pair.passed_by_no_effect else judged


def effects_compared(result: ReproducedExperiment) -> str:
    """Return what the share of an effect is, with the farthest as an example; nothing where no
    effect is compared.
    """
    gains = [pair for pair in result.published if pair.null and pair.effect_found is not None]
    if not gains:
        return ""
    pair = max(gains, key=lambda pair: pair.error)
    null = pair.null or 0.0
    ours, theirs = (
        (value or 0.0) - null for value in (pair.simulated and pair.simulated.mean, pair.value)
    )
    return (
        f"A number that is {null:g} without any effect is judged by what exceeds {null:g}, the share of the effect: "
        f"{series_and_point(pair)} has {significant(ours)} of {significant(theirs)}, {effect_in_words(pair)}."
    )


def summary_of_role(result: ReproducedExperiment, name: str) -> str:
    """Return how many numbers of an experiment have a role, and how many of them are within the
    goal.
    """
    counts = result.roles[name]
    return f"{counts.within} of {counts.compared} within the goal"


def _full_name(pair: ComparedNumber, result: ReproducedExperiment) -> str:
    """Return the series with its point, and the figure if the experiment has several."""
    several = len({metric_in_words(pair) for pair in result.published}) > 1
    name = f"'{series_and_point(pair)}'"
    return f"{name}, {metric_in_words(pair)}" if several else name


def metric_in_words(pair: Published) -> str:
    """Return the metric with its unit, and the class or part that it is of."""
    path, name = _path_and_name(pair)
    words = METRICS.get(name, name.removesuffix("_s").replace("_", " "))
    if "shares" in path:
        words = f"share of {words}"
    if name == "value":
        # The numbers of an experiment that computes one figure per series; older results do not say
        # which.
        return pair.measured or words
    part = path[-1] if path and path[-1] not in WHOLE else ""
    return (
        f"{words}, class {part}"
        if part.isdigit()
        else f"{words}, {part.replace('_', ' ')}"
        if part
        else words
    )


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
    """Return 0.1234 as 12.3% and 0.1 as 10%: a goal is a round number, not one that was measured to
    a decimal.
    """
    number = significant(100 * share)
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}%"
