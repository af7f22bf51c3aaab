"""`skit simulate`: many devices that share one verification server."""

from specbench_kit.cli import options, serving
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.serving.options import Kept, Published, Recorded, Simulated


@options_of(Simulated, Recorded, Published, Kept)
def simulate(given: Given, as_json: options.JsonOption = False) -> None:
    """Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others."""
    serving.run_command("simulate", given, as_json)
