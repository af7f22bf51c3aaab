"""What both profiling commands do: run under progress bars, print, and end with JSON where asked."""

from rich.console import Console
from rich.progress import TimeRemainingColumn

from specbench_kit.cli.common import not_saved, say, tell_report
from specbench_kit.cli.progress import stepping_bar
from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.settings import Settings
from specbench_kit.reports.profile.terminal import print_profiles
from specbench_kit.reports.writing.profiles import analytic_line
from specbench_kit.studies.profiling.run import ProfilingOutcome, run_profiling


def profile(settings: Settings, as_json: bool) -> None:
    """Profile, and say what came out."""
    console = Console(stderr=as_json)
    outcome = _run(settings)
    for found in outcome.summary["profiles"].values():
        if found["source"] == "roofline":
            say(console, analytic_line(found), style="bold black on yellow")
    print_profiles(console, outcome.run, outcome.summary)
    for role, path in outcome.saved.items():
        say(console, f"saved: {role} profile in {path}")
    tell_report(console, outcome.folder, outcome.summary, as_json)
    if outcome.doubts:
        names = " and ".join(f"{profile['name']}.toml" for profile in outcome.summary["profiles"].values())
        raise not_saved(outcome.doubts, f"{names} in {outcome.folder}")


def _run(settings: Settings) -> ProfilingOutcome:
    """Under a progress bar per step."""
    with stepping_bar(TimeRemainingColumn()) as report:
        try:
            return run_profiling(settings, report)
        except KeyboardInterrupt:
            raise SkitError("interrupted; timings so far are kept, --resume goes on with the rest") from None
