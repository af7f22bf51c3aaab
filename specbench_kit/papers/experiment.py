"""Published experiments as data: what to run, what the paper found and where, and what it leaves open."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.renamed import current_name

LIBRARY = Path(__file__).with_name("library")
BOUNDS = ("at least", "at most")
"""Keys of a published table, with `_`, that state one."""
Fields = Mapping[str, Any]
GRID = frozenset({"over", "ratios", "means", "picks"})
"""Options of an experiment beside those of its command: axes of a grid, and what is derived from the rows."""


class Assumed(NamedTuple):
    """An input that the paper does not give: what is taken for it, and where another value would lead.

    `key` is the option or field of the deployment that it is, `values` are further plausible ones.
    """

    name: str
    value: str
    effect: str
    key: str = ""
    values: tuple[Any, ...] = ()


class Published(NamedTuple):
    """A number of the paper: whose it is, at which place of the grid, and which figure of a row it stands beside.

    A value of None is one that the kit's authors do not have at hand. Where the paper states a bound in place of a
    number, `bound` says which, and the value is what it bounds.
    """

    series: str
    metric: str
    value: float | None
    where: Mapping[str, Any] = {}
    note: str = ""
    bound: str = ""

    def holds(self, ours: float | None) -> bool | None:
        """Whether ours keeps the bound; None where there is none, or nothing to hold against it."""
        if ours is None or self.value is None or not self.bound:
            return None
        return ours >= self.value if self.bound == BOUNDS[0] else ours <= self.value


@dataclass(frozen=True)
class Experiment:
    """`options` are those of the command; `against` is the series of all ratios.

    It counts as reproduced where no number is off by more than the share `goal`; `prevented` says what is in the way.
    Inputs are moved with the `sensitivity` options, which may make a run shorter.
    """

    name: str
    command: str
    summary: str
    source: str
    options: Fields
    published: tuple[Published, ...]
    assumed: tuple[Assumed, ...] = ()
    against: str = ""
    reading: str = ""
    goal: float = 0.1
    prevented: str = ""
    sensitivity: Fields = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """The folder that it lies in."""
        return self.name.partition("/")[0]


@cache
def experiments() -> dict[str, Experiment]:
    """Every experiment by `paper/name`."""
    files = sorted(LIBRARY.glob("*/*.toml"))
    names = {f"{path.parent.name}/{path.stem}": path for path in files}
    return {name: _made(name, _content(path)) for name, path in names.items()}


def find(name: str) -> list[Experiment]:
    """The experiment of that name, all of a paper, or `all`; an unknown name lists the known ones."""
    known = experiments()
    found = [one for one in known.values() if name in ("all", one.name, one.paper)]
    if not found:
        hint = did_you_mean(name, [*known, *dict.fromkeys(one.paper for one in known.values())])
        raise SkitError(f"unknown experiment '{name}'{hint}; known: all, {', '.join(known)}")
    return found


def _content(path: Path) -> dict[str, Any]:
    """What the file says, with the assumptions of the one that it is `like`, `less` some of them, moved there alone."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    like, less = content.pop("like", None), content.pop("less", [])
    if like is None:
        return content
    own = content.get("assumed", [])
    named = {*less, *(one["name"] for one in own)}
    shared = [one for one in _content(LIBRARY / f"{like}.toml")["assumed"] if one["name"] not in named]
    told = [{name: one[name] for name in ("name", "value", "effect")} for one in shared]
    return {**content, "assumed": [*own, *told]}


def _made(name: str, content: dict[str, Any]) -> Experiment:
    try:
        published = [one for table in content.pop("published", []) for one in _published(table)]
        tables = content.pop("assumed", [])
        assumed = [Assumed(**{**table, "values": tuple(table.get("values", ()))}) for table in tables]
        return Experiment(name, published=tuple(published), assumed=tuple(assumed), **content)
    except (KeyError, TypeError, SkitError) as error:
        raise SkitError(f"the experiment {name}: {error}") from error


def _published(table: Fields) -> Iterator[Published]:
    """One number, or one for every combination of the lists in `where`; false stands for one that is not at hand."""
    where: Fields = table.get("where", {})
    several = [name for name, value in where.items() if isinstance(value, list)]
    places = [dict(zip(several, at, strict=True)) for at in product(*(where[name] for name in several))]
    bound = next((one for one in BOUNDS if one.replace(" ", "_") in table), "")
    single = table[bound.replace(" ", "_")] if bound else table.get("value", False)
    values: Sequence[Any] = table.get("values", [single] * len(places))
    if len(values) != len(places):
        raise SkitError(f"{table['series']}, {table['metric']}: {len(values)} values for {len(places)} places")
    metric = current_name(table["metric"], f"published figures of {table['series']}")
    for place, value in zip(places, values, strict=True):
        number = None if value is False else float(value)
        yield Published(table["series"], metric, number, {**where, **place}, table.get("note", ""), bound)
