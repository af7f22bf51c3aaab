"""`skit profile-drafter`: how long a pair's steps take on the device at hand."""

import sys

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.profilers.settings import Drafter


@options_of(Drafter)
def profile_drafter(given: Given, as_json: options.JsonOption = False) -> None:
    """Profile a pair: draft steps and verifications against context and batch, AdaSpec's latency model of both."""
    from specbench_kit.cli.profiling import profile

    profile(Drafter(**given, argv=("skit", *sys.argv[1:])), as_json)
