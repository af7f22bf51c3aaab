"""`skit plan`: the cheapest fleet of verifiers that keeps a promise to many devices."""

from specbench_kit.cli.common import JsonOption, command_line, tell_study
from specbench_kit.studies.planning.options import PlanOptions


def plan(options: PlanOptions, as_json: JsonOption = False) -> None:
    """Search for the fleet, print the sentence to act on, and say where the report is."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.planning.run import PlanRun

    if options.resume:
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(options.out, "plan", command_line())
    console = Console(stderr=as_json)
    with stepping_bar() as report:
        study = PlanRun(options, report, command_line()).run()
    tell_study(console, study, as_json)
