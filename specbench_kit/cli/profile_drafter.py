"""`skit profile-drafter`: how long a pair's steps take on the device at hand."""

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line
from specbench_kit.core.option import Given
from specbench_kit.profilers.settings import Drafter


def profile_drafter(options_given: Given[Drafter], as_json: options.JsonOption = False) -> None:
    """Profile a pair: draft steps and verifications against context and batch, AdaSpec's latency model of both."""
    from specbench_kit.cli.profiling import profile

    profile(options_given.make(argv=command_line()), as_json)
