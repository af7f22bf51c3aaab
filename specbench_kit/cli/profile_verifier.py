"""`skit profile-verifier`: how long a target's forwards take on a device."""

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line
from specbench_kit.core.option import Given
from specbench_kit.profilers.settings import Verifier


def profile_verifier(options_given: Given[Verifier], as_json: options.JsonOption = False) -> None:
    """Profile a verifier: time WISP's 173 configurations, fit what they take, check it against physics."""
    from specbench_kit.cli.profiling import profile

    profile(options_given.make(argv=command_line()), as_json)
