"""`skit capacity`: how many devices one verification server can take."""

from specbench_kit.cli import options, serving
from specbench_kit.core.option import Given
from specbench_kit.serving.options import CapacityRule, PresetOption, RecordingOptions, ServingOptions


def capacity(
    served: Given[ServingOptions],
    rule: Given[CapacityRule],
    recorded: RecordingOptions,
    published: PresetOption,
    as_json: options.JsonOption = False,
) -> None:
    """Search for the most devices that one server can promise a token speed to."""
    serving.run_command("capacity", {**served.values, **rule.values}, recorded, published, as_json)
