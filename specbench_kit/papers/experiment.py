"""Published experiments as data: what to run, which numbers the paper prints, and which inputs it leaves open."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from specbench_kit.core.errors import SkitError, did_you_mean, require
from specbench_kit.core.renamed import current_name
from specbench_kit.core.typed_json import JsonObject

LIBRARY = Path(__file__).with_name("library")
BOUNDS = ("at least", "at most")
"""Bounds that a paper may state in place of a number; a TOML file writes them as `at_least` and `at_most`."""
GRID = frozenset({"over", "ratios", "means", "picks"})
"""Options of an experiment beyond those of its command: axes of a grid, and figures derived from the rows."""


class Assumed(NamedTuple):
    """An input that the paper does not give: the assumed value, and how the result depends on it.

    `key` names the option or the field of the deployment, and `values` are further plausible values of it.
    """

    name: str
    value: str
    effect: str
    key: str = ""
    values: tuple[object, ...] = ()


class Published(NamedTuple):
    """A published number: its series, its point of the grid (`where`), and the figure of a row that it is compared to.

    `value` is None if the kit's authors do not have the number. Where the paper states a bound instead of a number,
    `bound` is one of `BOUNDS` and `value` is the limit.
    """

    series: str
    metric: str
    value: float | None
    where: Mapping[str, object] = {}
    note: str = ""
    bound: str = ""

    def holds(self, simulated: float | None) -> bool | None:
        """Return whether a simulated number keeps the bound, or None without a bound or a number."""
        if simulated is None or self.value is None or not self.bound:
            return None
        return simulated >= self.value if self.bound == BOUNDS[0] else simulated <= self.value


@dataclass(frozen=True)
class Experiment:
    """A published experiment: the options of its command, the published numbers and the assumed inputs.

    It counts as reproduced if no number is off by more than the share `goal`; `prevented` says what prevents that.
    `against` is the series that all ratios are taken to. Inputs are varied with the `sensitivity` options on top, which
    may make a run shorter.
    """

    name: str
    command: str
    summary: str
    source: str
    options: JsonObject
    published: tuple[Published, ...]
    assumed: tuple[Assumed, ...] = ()
    against: str = ""
    reading: str = ""
    goal: float = 0.1
    prevented: str = ""
    sensitivity: JsonObject = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """The paper's name, which is the folder of the experiment's file."""
        return self.name.partition("/")[0]


@cache
def experiments() -> dict[str, Experiment]:
    """Return every experiment of the library by `paper/name`."""
    files = {f"{path.parent.name}/{path.stem}": path for path in sorted(LIBRARY.glob("*/*.toml"))}
    return {name: build_experiment(name, _read(path)) for name, path in files.items()}


def find_experiments(name: str) -> list[Experiment]:
    """Return the experiment of that name, all experiments of a paper, or `all`; raise SkitError if there is none."""
    library = experiments()
    matches = [experiment for experiment in library.values() if name in ("all", experiment.name, experiment.paper)]
    if not matches:
        hint = did_you_mean(name, [*library, *dict.fromkeys(experiment.paper for experiment in library.values())])
        raise SkitError(f"unknown experiment '{name}'{hint}; known: all, {', '.join(library)}")
    return matches


def build_experiment(name: str, content: JsonObject) -> Experiment:
    """Return the experiment of a parsed TOML file; raise SkitError where a key is wrong."""
    fields = dict(content)
    try:
        published = [number for table in fields.pop("published", []) for number in _published_numbers(table)]
        assumed = [
            Assumed(**{**table, "values": tuple(table.get("values", ()))}) for table in fields.pop("assumed", [])
        ]
        return Experiment(name, published=tuple(published), assumed=tuple(assumed), **fields)
    except (KeyError, TypeError, SkitError) as error:
        raise SkitError(f"the experiment {name}: {error}") from error


def _read(path: Path) -> JsonObject:
    """Return the content of a file, with the assumptions of the experiment that it is `like` added to its own.

    `less` names assumptions that are not taken over. Inherited ones are varied only in the experiment that states them,
    so that they come without `key` and `values`.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    like, less = content.pop("like", None), content.pop("less", [])
    if like is None:
        return content
    own = content.get("assumed", [])
    excluded = {*less, *(assumed["name"] for assumed in own)}
    inherited = [
        {key: assumed[key] for key in ("name", "value", "effect")}
        for assumed in _read(LIBRARY / f"{like}.toml")["assumed"]
        if assumed["name"] not in excluded
    ]
    return {**content, "assumed": [*own, *inherited]}


def _published_numbers(table: JsonObject) -> Iterator[Published]:
    """Yield one number for every combination of the lists in `where`; a value of false stands for a missing number."""
    metric = current_name(table["metric"], f"published figures of {table['series']}")
    where: JsonObject = table.get("where", {})
    axes = [axis for axis, value in where.items() if isinstance(value, list)]
    points = [dict(zip(axes, values, strict=True)) for values in product(*(where[axis] for axis in axes))]
    bound = next((bound for bound in BOUNDS if bound.replace(" ", "_") in table), "")
    single = table[bound.replace(" ", "_")] if bound else table.get("value", False)
    values: Sequence[float | bool] = table.get("values", [single] * len(points))
    require(
        len(values) == len(points),
        f"{table['series']}, {table['metric']}: {len(values)} values for {len(points)} places",
    )
    for point, value in zip(points, values, strict=True):
        number = None if value is False else float(value)
        yield Published(table["series"], metric, number, {**where, **point}, table.get("note", ""), bound)
