"""`skit simulate`: many devices that share one verification server."""

from specbench_kit.cli import options, serving
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.serving.options import OutputOptions, PresetOption, RecordingOptions, SimulationOptions


@options_of(SimulationOptions, RecordingOptions, PresetOption, OutputOptions)
def simulate(given: Given, as_json: options.JsonOption = False) -> None:
    """Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others."""
    serving.run_command("simulate", given, as_json)
