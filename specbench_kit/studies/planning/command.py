"""`skit plan`: the cheapest fleet of verifiers that keeps a promise to many devices."""

from specbench_kit.cli.common import JsonOption, command_line, say, tell_study
from specbench_kit.core.option import Given
from specbench_kit.studies.planning.options import PlanOptions


def plan(given: Given[PlanOptions], as_json: JsonOption = False) -> None:
    """Search for the fleet, print the sentence to act on, and say where the report is."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.planning.run import PlanRun

    options = given.make()
    if options.resume:
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(options.out, "plan", command_line())
    console = Console(stderr=as_json)
    if "deployment" not in given.values:
        from specbench_kit.deployments.loading import find

        device = find(options.deployment).build().drafter.device
        say(
            console,
            f"no --deployment: taking {options.deployment}, for devices that draft ({device}) and their link; skit "
            "list deployments shows others, such as phone",
        )
    with stepping_bar() as report:
        study = PlanRun(options, report, command_line()).run()
    tell_study(console, study, as_json)
