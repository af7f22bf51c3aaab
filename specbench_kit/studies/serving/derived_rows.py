"""Figures that follow from the rows of a grid, which papers state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench_kit.metrics.serving_rows import mean_of

Row = dict[str, Any]
_RATE = "violation_rate"


def derived(rows: Sequence[Row]) -> list[Row]:
    """Rows beside those of simulations, at the same places; capacities have none."""
    simulated = [row for row in rows if "figures" in row]
    return [*fewer_violations(simulated), *compute_shares(simulated)]


def fewer_violations(rows: Sequence[Row]) -> Iterator[Row]:
    """How much less often than the first series every other one breaks the promise to a class, at the same place."""
    first = {_place(row): row["figures"]["classes"] for row in rows if row["series"] == rows[0]["series"]}
    for row in rows:
        if row["series"] == rows[0]["series"] or _place(row) not in first:
            continue
        before, after = first[_place(row)], row["figures"]["classes"]
        rates = {n: (mean_of(before.get(n, {}), _RATE), mean_of(one, _RATE)) for n, one in after.items()}
        fewer = {
            n: {"fewer_violations": {"mean": theirs - ours}}
            for n, (theirs, ours) in rates.items()
            if theirs is not None and ours is not None
        }
        yield {**row, "figures": {}, "classes": fewer}


def compute_shares(rows: Sequence[Row]) -> Iterator[Row]:
    """The share of the missed deadlines that is put down to the batch itself."""
    for row in rows:
        compute, queue = (row["figures"]["violations"][f"{one}_dominant"]["mean"] for one in ("compute", "queue"))
        if compute + queue:
            yield {**row, "figures": {}, "compute_share": {"mean": compute / (compute + queue)}}


def _place(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in row.items() if name not in ("series", "figures"))
