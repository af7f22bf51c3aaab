"""`skit profile-verifier`: how long a target's forwards take on a device."""

import sys

from specbench_kit.cli import options
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.profilers.settings import Verifier


@options_of(Verifier)
def profile_verifier(given: Given, as_json: options.JsonOption = False) -> None:
    """Profile a verifier: time WISP's 173 configurations, fit what they take, check it against physics."""
    from specbench_kit.cli.profiling import profile

    profile(Verifier(**given, argv=("skit", *sys.argv[1:])), as_json)
