"""Comparison of published numbers with the numbers that the kit simulates."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, structs

from specbench_kit.papers.experiment import BOUNDS, PREDICTED, Experiment, Published
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.serving.figures import Interval


class RatioOfRatios(Struct, frozen=True):
    """The advantage of a reference series over another one, published and simulated, and the second
    over the first.
    """

    published: Annotated[
        float,
        Meta(
            description="published factor by which the experiment's reference series is ahead of this one"
        ),
    ]
    simulated: Annotated[
        float,
        Meta(
            description="simulated factor by which the experiment's reference series is ahead of this one"
        ),
    ]
    ratio: Annotated[float, Meta(description="simulated / published")]


class ComparedNumber(Published, frozen=True, kw_only=True):
    """A published number next to the simulated one, where there is one."""

    simulated: Annotated[
        Interval | None, Meta(description="simulated number; null if it was not simulated")
    ]
    simulated_over_published: Annotated[
        float | None,
        Meta(
            description="simulated / published number; null for a bound, and if either is not known or the "
            "published number is 0"
        ),
    ]
    score: Annotated[
        float | None,
        Meta(
            description="simulated / published effect, or that of the numbers themselves if no effect is "
            "stated; null for a bound, and without one of them"
        ),
    ]
    holds: Annotated[
        bool | None,
        Meta(
            description="whether the simulated number keeps a published bound; null for a number without a "
            "bound, and if either is not known"
        ),
    ]
    within: Annotated[
        bool | None,
        Meta(
            description="whether the simulated number is as near to the published one as the goal asks, or "
            "keeps the bound; null if there is nothing to compare"
        ),
    ]
    passed_by_no_effect: Annotated[
        bool,
        Meta(
            description="whether a result without any effect would be near enough too, so that the number "
            "shows nothing"
        ),
    ]
    counted: Annotated[
        bool,
        Meta(
            description="whether it is a prediction that could have failed: only these make up the verdict"
        ),
    ]
    ratio_of_ratios: Annotated[
        RatioOfRatios | None,
        Meta(
            description="advantage of the experiment's reference series over this series, simulated over "
            "published; null without a reference series at the same point"
        ),
    ] = None
    unchanged: Annotated[
        Interval | None,
        Meta(
            description="the simulated number before inputs were changed; null where none was changed"
        ),
    ] = None

    @property
    def effect_found(self) -> float | None:
        """The simulated over the published effect, of a number that states what it would be without
        one.
        """
        return self.score if self.null is not None and self.value != self.null else None

    @property
    def error(self) -> float:
        """Return the distance of the score from 1; 0 of a number without a score."""
        return 0.0 if self.score is None else abs(self.score - 1)


def compare_published(experiment: Experiment, rows: Sequence[FigureRow]) -> list[ComparedNumber]:
    """Return every published number with the simulated one and the ratio of both, as reports show
    them.
    """
    return compare_simulated(
        [(published, _simulated(published, rows)) for published in experiment.published],
        experiment.goal,
        experiment.against,
        experiment.variants,
    )


def compare_simulated(
    numbers: Sequence[tuple[Published, Interval | None]],
    goal: float,
    against: str,
    variants: Sequence[Sequence[str]] = (),
) -> list[ComparedNumber]:
    """Return published numbers compared with those that were simulated for them.

    No paper says how far one of its rows is ahead of itself, which is what a reference over its
    variants would be.
    """
    of_one_row = {
        against,
        *(series for several in variants if against in several for series in several),
    }
    pairs = [_pair(published, simulated, goal) for published, simulated in numbers]
    bases: dict[object, ComparedNumber] = {}
    for pair in pairs:
        if pair.series == against:
            bases.setdefault(_point(pair), pair)
    compared = []
    for pair in pairs:
        base = bases.get(_point(pair)) if pair.series not in of_one_row else None
        compared.append(
            structs.replace(pair, ratio_of_ratios=base and _ratio_of_ratios(pair, base))
        )
    return compared


class PrintedNumber(NamedTuple):
    """A number or bound that the paper prints once, compared under each of the assumptions that the
    experiment tries.

    It is met if it is under all of them: nobody can choose the assumption afterwards.
    """

    compared: tuple[ComparedNumber, ...]

    @property
    def is_met(self) -> bool:
        """Whether the number comes out under every assumption."""
        return all(number.within for number in self.compared)

    @property
    def times_met(self) -> int:
        """Under how many assumptions the number comes out."""
        return sum(bool(number.within) for number in self.compared)


def printed_numbers(
    pairs: Sequence[ComparedNumber], variants: Sequence[Sequence[str]]
) -> list[PrintedNumber]:
    """Return compared numbers by what the paper prints; those of series that are variants of one
    row are joined.
    """
    row_of_series = {series: row for row, several in enumerate(variants) for series in several}
    joined: dict[object, list[ComparedNumber]] = {}
    for pair in pairs:
        row = row_of_series.get(pair.series, pair.series)
        joined.setdefault((row, _point(pair), pair.value, pair.bound, pair.measured), []).append(
            pair
        )
    return [PrintedNumber(tuple(several)) for several in joined.values()]


def predictions(
    pairs: Sequence[ComparedNumber], variants: Sequence[Sequence[str]]
) -> list[PrintedNumber]:
    """Return the printed numbers that count: predicted, compared, and not met by a result without
    any effect.
    """
    return printed_numbers([pair for pair in pairs if pair.counted], variants)


def _point(published: Published) -> tuple[str, frozenset[tuple[str, object]]]:
    return published.metric, frozenset(published.where.items())


def _simulated(published: Published, rows: Sequence[FigureRow]) -> Interval | None:
    """Return the figure of the first simulated row that has it."""
    figures = (row.figure(published.metric) for row in rows if _is_about(row, published))
    found = next((figure for figure in figures if figure is not None), None)
    return None if found is None else Interval(found["mean"], found.get("low"), found.get("high"))


def _pair(published: Published, simulated: Interval | None, goal: float) -> ComparedNumber:
    """Return one published number with the simulated one."""
    mean = None if simulated is None else simulated.mean
    # A published bound is no number that a ratio could be taken to.
    ratio = (
        mean / published.value
        if mean is not None and published.value and not published.bound
        else None
    )
    within = _within(published, mean, goal)
    shows_nothing = _is_met_without_effect(published, goal)
    return ComparedNumber(
        **structs.asdict(published),
        simulated=simulated,
        simulated_over_published=ratio,
        score=_score(published, mean),
        holds=holds(published, mean),
        within=within,
        passed_by_no_effect=shows_nothing,
        counted=published.role == PREDICTED and within is not None and not shows_nothing,
    )


def _is_met_without_effect(published: Published, goal: float) -> bool:
    """Return whether a result without any effect would be near enough too, so that the number means
    nothing.
    """
    idle = published.unaffected if published.null is None else published.null
    return idle is not None and (published.value == idle or bool(_within(published, idle, goal)))


def _is_about(row: FigureRow, published: Published) -> bool:
    """Return whether a simulated row is of the series and at the point of a published number."""
    at_point = all(row.point.get(axis) == value for axis, value in published.where.items())
    return row.series == published.series and at_point


def holds(published: Published, simulated: float | None) -> bool | None:
    """Return whether a simulated number keeps a published bound, or None without a bound or a
    number.
    """
    if simulated is None or published.value is None or not published.bound:
        return None
    return (
        simulated >= published.value
        if published.bound == BOUNDS[0]
        else simulated <= published.value
    )


def _score(published: Published, simulated: float | None) -> float | None:
    """Return the simulated over the published effect, or None without one of them.

    A number that is printed as it would be without any effect has none, and is compared itself.
    """
    null = published.null if published.null != published.value and published.null else 0.0
    if simulated is None or published.value is None or published.bound or published.value == null:
        return None
    return (simulated - null) / (published.value - null)


def _within(published: Published, simulated: float | None, goal: float) -> bool | None:
    """Return whether a simulated number is as near as it should be, or keeps the bound; None
    without a number.
    """
    if published.bound:
        return holds(published, simulated)
    if published.points is not None and simulated is not None and published.value is not None:
        return abs(simulated - published.value) <= published.points
    score = _score(published, simulated)
    return None if score is None else abs(score - 1) <= goal


def _ratio_of_ratios(pair: ComparedNumber, base: ComparedNumber) -> RatioOfRatios | None:
    """Return the published and the simulated ratio of the base series to this one, and the second
    over the first.
    """
    if not (pair.value and base.value and pair.simulated and base.simulated):
        return None
    if not (pair.simulated.mean and base.simulated.mean):
        return None
    published = base.value / pair.value
    simulated = base.simulated.mean / pair.simulated.mean
    return RatioOfRatios(published, simulated, simulated / published)
