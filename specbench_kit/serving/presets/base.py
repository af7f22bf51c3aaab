"""The preset contract: options of a command, what the paper leaves open, and what it found."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.registry import Registry

Fields = dict[str, Any]
Command = Literal["simulate", "capacity"]


class Assumed(NamedTuple):
    """An input that the paper does not give: what is taken for it, and where another value would lead."""

    name: str
    value: str
    effect: str


class Published(NamedTuple):
    """A number of the paper: whose it is, at which place of the grid, and which figure of a row it stands beside.

    A value of None is one that the kit's authors do not have at hand.
    """

    series: str
    metric: str
    value: float | None
    where: Mapping[str, Any] = {}
    note: str = ""


@dataclass(frozen=True)
class Preset:
    """`options` are those of the command, by the names of its settings; `against` is the series of all ratios."""

    command: Command
    summary: str
    source: str
    options: Mapping[str, Any]
    assumed: Sequence[Assumed]
    published: Sequence[Published] = ()
    against: str = ""
    reading: str = ""


presets: Registry[Preset] = Registry("preset", "specbench_kit.serving.presets", group="specbench_kit.presets")


def beside(preset: Preset, rows: Sequence[Fields]) -> list[Fields]:
    """Every published number with the simulated one, and how the ratios to one series compare."""
    found = [_pair(one, rows) for one in preset.published]
    for pair, one in zip(found, preset.published, strict=True):
        base = next((p for p, o in zip(found, preset.published, strict=True) if _is_base(preset, o, one)), None)
        pair["ratio_of_ratios"] = None if base is None else _ratio_of_ratios(pair, base)
    return found


def _is_base(preset: Preset, one: Published, other: Published) -> bool:
    same = one.metric == other.metric and one.where == other.where
    return same and one.series == preset.against and other.series != preset.against


def _pair(one: Published, rows: Sequence[Fields]) -> Fields:
    there = (look_up(row, one.metric) for row in rows if row["series"] == one.series and _at(row, one.where))
    simulated = next((found for found in there if found is not None), None)
    mean = None if simulated is None else simulated["mean"]
    ratio = mean / one.value if mean is not None and one.value else None
    return {**_described(one), "simulated": simulated, "simulated_over_published": ratio}


def _described(one: Published) -> Fields:
    return {**one._asdict(), "where": dict(one.where)}


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


def describe(name: str, preset: Preset) -> Fields:
    """As `run.json` holds it."""
    plain = {key: value for key, value in asdict(preset).items() if key not in ("published", "assumed", "options")}
    return {"name": name, **plain, "assumed": [one._asdict() for one in preset.assumed]}
