"""Comparison of published numbers with the numbers that the kit simulates."""

from collections.abc import Sequence

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.papers.experiment import PREDICTED, Experiment, Published


def compare_published(experiment: Experiment, rows: Sequence[JsonObject]) -> list[dict[str, object]]:
    """Return every published number with the simulated one and the ratio of both, as reports show them.

    `ratio_of_ratios` compares the advantage of the series `experiment.against` over this series: simulated advantage
    over published advantage, or None where a number is missing.
    """
    pairs = [_pair(published, rows, experiment.goal) for published in experiment.published]
    bases: dict[object, JsonObject] = {}
    for published, pair in zip(experiment.published, pairs, strict=True):
        if published.series == experiment.against:
            bases.setdefault(_point(published), pair)
    compared: list[dict[str, object]] = []
    for published, pair in zip(experiment.published, pairs, strict=True):
        base = bases.get(_point(published)) if published.series != experiment.against else None
        compared.append({**pair, "ratio_of_ratios": base and _ratio_of_ratios(pair, base)})
    return compared


def _point(published: Published) -> tuple[str, frozenset[tuple[str, object]]]:
    return published.metric, frozenset(published.where.items())


def _pair(published: Published, rows: Sequence[JsonObject], goal: float) -> JsonObject:
    """Return one published number with the figure of the first simulated row that has it.

    `counted` says whether it is a prediction that could have failed: only these make up the verdict.
    """
    figures = (
        look_up(row, published.metric)
        for row in rows
        if row["series"] == published.series and all(row.get(axis) == value for axis, value in published.where.items())
    )
    simulated = next((figure for figure in figures if figure is not None), None)
    mean = None if simulated is None else simulated["mean"]
    # A published bound is no number that a ratio could be taken to; `holds` judges it.
    ratio = mean / published.value if mean is not None and published.value and not published.bound else None
    return {
        **published._asdict(),
        "where": dict(published.where),
        "simulated": simulated,
        "simulated_over_published": ratio,
        "score": published.score(mean),
        "holds": published.holds(mean),
        "within": (within := published.within(mean, goal)),
        "passed_by_no_effect": (shows_nothing := published.passed_by_no_effect(goal)),
        "counted": published.role == PREDICTED and within is not None and not shows_nothing,
    }


def _ratio_of_ratios(pair: JsonObject, base: JsonObject) -> dict[str, float] | None:
    """Return the published and the simulated ratio of the base series to this one, and the second over the first."""
    values = [pair["value"], base["value"], *((side["simulated"] or {}).get("mean") for side in (pair, base))]
    if any(not value for value in values):
        return None
    value, base_value, simulated_value, simulated_base = map(float, values)
    published = base_value / value
    simulated = simulated_base / simulated_value
    return {"published": published, "simulated": simulated, "ratio": simulated / published}
