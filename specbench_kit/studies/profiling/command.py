"""`skit profile-verifier`, `skit profile-drafter` and `skit profile-server`: how long steps
take.
"""

from typing import Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    say,
    say_disturbed,
    say_target,
    tell_report,
)
from specbench_kit.cli.interrupts import kept_when_interrupted
from specbench_kit.core.option import FIRST, Given
from specbench_kit.profilers.settings import (
    DrafterProfileSettings,
    ProfileSettings,
    VerifierProfileSettings,
)

MODELS_AT_HAND = ("auto", "bundled")
LARGER_MODELS = (
    "this is the profile of the model at hand, whose steps are mostly overhead on such a device; "
    "--target qwen3-32b, or another architecture card, derives that of a larger model without its weights"
)
"""What nobody learns from the profile of a small model on a large device, and how to get another
one.
"""


def profile_verifier(
    options: Annotated[Given[VerifierProfileSettings], FIRST.of("software")],
    as_json: JsonOption = False,
) -> None:
    """Profile a target on a device."""
    _profile(options.make(argv=command_line()), as_json)


def profile_drafter(options: Given[DrafterProfileSettings], as_json: JsonOption = False) -> None:
    """Profile a pair of models on a device."""
    _profile(options.make(argv=command_line()), as_json)


def _profile(settings: ProfileSettings, as_json: bool) -> None:
    # A profile that is derived for a --gpu is never resumed, which is refused where it is known to
    # be derived.
    if settings.resume and settings.gpu is None:
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(settings.out, settings.command, command_line())
    from rich.console import Console
    from rich.progress import TimeRemainingColumn

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.profiling.report import analytic_line
    from specbench_kit.studies.profiling.run import run_profiling

    console = Console(stderr=as_json)
    say_target(console, settings.target)
    kept = "the timings so far are kept, --resume continues with the others"
    with kept_when_interrupted(lambda: kept), stepping_bar(TimeRemainingColumn()) as report:
        outcome = run_profiling(settings, report)
    study = outcome.study
    for profile in study.result.profiles.values():
        if profile.is_derived:
            say(console, analytic_line(profile), style="bold black on yellow")
            if settings.target in MODELS_AT_HAND:
                say(console, LARGER_MODELS)
    study.kind.print(console, study)
    for role, path in outcome.saved.items():
        say(console, f"saved: {role} profile in {path}")
    tell_report(console, study.folder, study.result, as_json)
    if outcome.doubts:
        names = ", ".join(path.stem for path in outcome.saved.values())
        say_disturbed(
            console, outcome.doubts, f"--profile {names}" if settings.draft is None else names
        )
