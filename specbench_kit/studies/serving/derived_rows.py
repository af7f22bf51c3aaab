"""Figures that papers state and that follow from the rows of a grid."""

from collections.abc import Iterator, Sequence

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.serving_rows import mean_of


def derived_rows(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return further rows at the points of simulated ones; rows of capacities have none."""
    simulated = [row for row in rows if "figures" in row]
    return [*fewer_violations(simulated), *compute_shares(simulated)]


def fewer_violations(rows: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield, for every series but the first, how much less often it violates each class's SLO than the first does."""
    reference = {_point(row): row["figures"]["classes"] for row in rows if row["series"] == rows[0]["series"]}
    for row in rows:
        if row["series"] == rows[0]["series"] or _point(row) not in reference:
            continue
        classes = {}
        for name, group in row["figures"]["classes"].items():
            before = mean_of(reference[_point(row)].get(name, {}), "violation_rate")
            after = mean_of(group, "violation_rate")
            if before is not None and after is not None:
                classes[name] = {"fewer_violations": {"mean": before - after}}
        yield {**row, "figures": {}, "classes": classes}


def compute_shares(rows: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the share of missed deadlines that is attributed to the batch itself."""
    for row in rows:
        causes = row["figures"]["violations"]
        compute, queue = causes["compute_dominant"]["mean"], causes["queue_dominant"]["mean"]
        if compute + queue:
            yield {**row, "figures": {}, "compute_share": {"mean": compute / (compute + queue)}}


def _point(row: JsonObject) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in row.items() if name not in ("series", "figures"))
