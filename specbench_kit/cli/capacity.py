"""`skit capacity`: how many devices one verification server can take."""

from specbench_kit.cli import options, serving
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.serving.options import CapacityRule, PresetOption, RecordingOptions, ServingOptions


@options_of(ServingOptions, CapacityRule, RecordingOptions, PresetOption)
def capacity(given: Given, as_json: options.JsonOption = False) -> None:
    """Search for the most devices that one server can promise a token speed to."""
    serving.run_command("capacity", given, as_json)
