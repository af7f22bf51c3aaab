"""`skit ab`: two running servers compared request by request."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    print_json,
    require_all,
    say,
    say_report,
)
from specbench_kit.cli.exit_codes import FAILED, INCONCLUSIVE
from specbench_kit.core.common_options import DatasetOptions, Strict
from specbench_kit.core.option import Given
from specbench_kit.studies.ab.settings import OF_FILES, AbSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from specbench_kit.studies.ab.store import AbOutcome
    from specbench_kit.studies.ab.summary import AbCondition


OF_DATASETS = OF_FILES.of(*(field.name for field in fields(DatasetOptions)))


def ab(
    options: Annotated[Given[AbSettings], OF_DATASETS],
    strict: Strict = False,
    as_json: JsonOption = False,
) -> None:
    """Measure both servers in turns, print the verdicts, and end with an error if a server was
    lost.
    """
    from rich.console import Console

    from specbench_kit.studies.ab.summary import AbCondition

    settings = options.make(argv=command_line())
    if settings.resume:
        from specbench_kit.runs.directory import is_whole
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(settings.out, "ab", command_line(), is_whole)
    conditions = [AbCondition.parse(text) for text in settings.fail_if]
    console = Console(stderr=as_json)
    outcome = _compare(settings, console)
    study = outcome.study
    study.kind.print(console, study)
    say_report(console, study.folder)
    failed, doubts = _judge(outcome, conditions)
    if as_json:
        document = {"run_dirs": [str(study.folder)], "summary": study.result}
        print_json({**document, "failed": failed, "inconclusive": doubts})
    if outcome.problem is not None:
        raise outcome.problem
    errors = Console(stderr=True)
    for line in failed:
        say(errors, f"failed: {line}", style="bold red")
    for line in doubts:
        say(errors, f"inconclusive: {line}; run it again on a quiet machine", style="bold red")
    if failed or doubts:
        raise typer.Exit(FAILED if failed else INCONCLUSIVE)
    if strict:
        failures = dict.fromkeys(outcome.study.result.names, 0)
        for load in outcome.study.result.loads:
            for name in failures:
                failures[name] += load.servers[name].failed
        require_all(failures)


def _judge(
    outcome: "AbOutcome", conditions: "Sequence[AbCondition]"
) -> tuple[list[str], list[str]]:
    """Return the conditions that hold, and why conditions on time cannot be judged; nothing for an
    unfinished run.
    """
    from specbench_kit.runs.machine.limits import disturbances

    if outcome.problem is not None:
        return [], []
    is_timed = any(condition.is_timed for condition in conditions)
    doubts = disturbances(outcome.study.run.machine) if is_timed else []
    judged = [condition for condition in conditions if not (doubts and condition.is_timed)]
    return [
        line for condition in judged for line in condition.violations(outcome.study.result)
    ], doubts


def _compare(settings: AbSettings, console: "Console") -> "AbOutcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.ab import imported, run

    if settings.files:
        return imported.compare_files(settings)

    run.require_kinds(
        settings
    )  # before the search for the prompts, which may say that it found none
    sources = DatasetOptions(
        dataset=settings.dataset, data_dir=settings.data_dir, sample=settings.sample
    )
    dataset = load_dataset(sources, settings.limit, settings.seed, console)
    with stepping_bar() as progress:
        return run.compare_servers(
            settings, dataset, progress, lambda line: say(console, line, style="yellow")
        )
