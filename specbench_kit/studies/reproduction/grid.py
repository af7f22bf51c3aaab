"""Experiments of any command over grids of moved inputs, with what is derived from their rows."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.papers.experiment import GRID
from specbench_kit.studies.reproduction.derived import Derived
from specbench_kit.studies.reproduction.moving import moved
from specbench_kit.studies.reproduction.serving import Rows

Options = Mapping[str, Any]
Command = Callable[[Options, CountCallback], Rows]


def rows_of(command: Command, options: Options, told: CountCallback) -> Rows:
    """The rows of every place, and what follows from them.

    An axis has the `key` that it moves, and `values`, or a table of them by the names that places have in the rows.
    """
    own = {name: value for name, value in options.items() if name not in GRID}
    places = list(_places(options.get("over", {}), own))
    rows: Rows = []
    for done, (place, at) in enumerate(places):
        rows += [{**place, **row} for row in command(at, told if len(places) == 1 else _nothing)]
        if len(places) > 1:
            told(done + 1, len(places))
    derived = Derived(rows)
    for kind, make in (("means", derived.means), ("ratios", derived.ratios), ("picks", derived.picks)):
        derived.rows = [*derived.rows, *make(options.get(kind, {}))]
    return derived.rows


def _places(axes: Mapping[str, Mapping[str, Any]], own: Options) -> Iterator[tuple[dict[str, Any], Options]]:
    """Names of values by axis, and the options there."""
    named = [_named(axis["values"]) for axis in axes.values()]
    for names in product(*named):
        at = own
        for axis, values, name in zip(axes.values(), named, names, strict=True):
            at = moved(at, axis["key"], values[name])
        yield dict(zip(axes, names, strict=True)), at


def _named(values: Any) -> Mapping[Any, Any]:
    return values if isinstance(values, Mapping) else {value: value for value in values}


def _nothing(_done: int, _planned: int) -> None:
    return None
