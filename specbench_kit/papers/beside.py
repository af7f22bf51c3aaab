"""Published numbers beside those that came out here."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.papers.experiment import Experiment, Published

Fields = dict[str, Any]


def beside(experiment: Experiment, rows: Sequence[Fields]) -> list[Fields]:
    """Every published number with the simulated one, and how the ratios to one series compare."""
    found = [_pair(one, rows) for one in experiment.published]
    for pair, one in zip(found, experiment.published, strict=True):
        others = zip(found, experiment.published, strict=True)
        base = next((p for p, o in others if _is_base(experiment.against, o, one)), None)
        pair["ratio_of_ratios"] = None if base is None else _ratio_of_ratios(pair, base)
    return found


def _is_base(against: str, one: Published, other: Published) -> bool:
    same = one.metric == other.metric and one.where == other.where
    return same and one.series == against and other.series != against


def _pair(one: Published, rows: Sequence[Fields]) -> Fields:
    there = (look_up(row, one.metric) for row in rows if row["series"] == one.series and _at(row, one.where))
    simulated = next((found for found in there if found is not None), None)
    mean = None if simulated is None else simulated["mean"]
    ratio = mean / one.value if mean is not None and one.value and not one.bound else None
    described = {**one._asdict(), "where": dict(one.where)}
    return {**described, "simulated": simulated, "simulated_over_published": ratio, "holds": one.holds(mean)}


def _at(row: Fields, where: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in where.items())


def _ratio_of_ratios(pair: Fields, base: Fields) -> Fields | None:
    """`published` and `simulated` are the other series over this one, `ratio` the second over the first."""
    values = [pair["value"], base["value"], *((one["simulated"] or {}).get("mean") for one in (pair, base))]
    if any(not value for value in values):
        return None
    ours, theirs, mine, other = map(float, values)
    published, simulated = theirs / ours, other / mine
    return {"published": published, "simulated": simulated, "ratio": simulated / published}
