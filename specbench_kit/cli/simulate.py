"""`skit simulate`: many devices that share one verification server."""

from typing import Annotated

import typer

from specbench_kit.cli import options, serving
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.option import OUTPUT
from specbench_kit.serving.options import Recorded, Simulated


@options_of(Simulated, Recorded)
def simulate(
    given: Given,
    preset: serving.PresetOption = None,
    events: Annotated[
        bool, typer.Option("--events", help="Keep every round, response and batch as Parquet.", rich_help_panel=OUTPUT)
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(help="FROM:TO, simulated seconds of each system to keep for Perfetto.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others."""
    serving.run_command("simulate", {**given, "events": events, "timeline": timeline}, preset, as_json)
