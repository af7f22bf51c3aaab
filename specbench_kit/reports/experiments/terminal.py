"""A reproduced experiment on the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.experiments.wording import figure, outcome, place_of, published
from specbench_kit.reports.writing.formatting import significant

if TYPE_CHECKING:
    from rich.console import Console


def print_experiment(console: "Console", found: Mapping[str, Any]) -> None:
    """Numbers, assumptions and the verdict."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{found['name']}: {found['summary']} ({found['source']})", style="bold"))
    table = Table("whose", "figure", "published", "ours", "ours / published", box=None, pad_edge=False)
    for one in found["published"]:
        ours = significant((one["simulated"] or {}).get("mean"), 4)
        cells = (place_of(one), figure(one), published(one) or "–", ours, outcome(one))
        table.add_row(*map(Text, cells))
    console.print(table)
    for one in found["assumed"]:
        console.print(Text(f"assumed: {one['name']}: {one['value']}"))
    console.print(Text(found["verdict"], style="bold"))
