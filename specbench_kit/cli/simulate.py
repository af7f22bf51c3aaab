"""`skit simulate`: many devices that share one verification server."""

from specbench_kit.cli import options, serving
from specbench_kit.core.option import Given
from specbench_kit.serving.options import OutputOptions, PresetOption, RecordingOptions, SimulationOptions


def simulate(
    simulated: Given[SimulationOptions],
    recorded: RecordingOptions,
    published: PresetOption,
    kept: Given[OutputOptions],
    as_json: options.JsonOption = False,
) -> None:
    """Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others."""
    serving.run_command("simulate", {**simulated.values, **kept.values}, recorded, published, as_json)
