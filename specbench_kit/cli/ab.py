"""`skit ab`: two running servers compared request by request."""

from typing import TYPE_CHECKING

import typer

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    print_json,
    require_all,
    say,
    tell_page,
)
from specbench_kit.cli.exit_codes import FAILED, INCONCLUSIVE
from specbench_kit.core.common_options import DatasetOptions, Strict
from specbench_kit.core.option import Given
from specbench_kit.studies.ab.settings import AbSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from specbench_kit.metrics.ab.summary import AbCondition
    from specbench_kit.studies.ab.store import AbOutcome


def ab(options: Given[AbSettings], strict: Strict = False, as_json: JsonOption = False) -> None:
    """Measure both servers in turns, print the verdicts, and end with an error if a server was lost."""
    from rich.console import Console

    from specbench_kit.metrics.ab.summary import AbCondition

    settings = options.make(argv=command_line())
    if settings.resume:
        from specbench_kit.runs.directory import is_whole
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(settings.out, "ab", command_line(), is_whole)
    conditions = [AbCondition.parse(text) for text in settings.fail_if]
    console = Console(stderr=as_json)
    outcome = _compare(settings, console)
    _tell(outcome, console)
    failed, doubts = _judge(outcome, conditions)
    if as_json:
        document = {"run_dirs": [str(outcome.folder)], "summary": outcome.summary}
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
        failures = dict.fromkeys(outcome.summary.names, 0)
        for load in outcome.summary.loads:
            for name in failures:
                failures[name] += load.servers[name].failed
        require_all(failures)


def _judge(outcome: "AbOutcome", conditions: "Sequence[AbCondition]") -> tuple[list[str], list[str]]:
    """Return the conditions that hold, and why conditions on time cannot be judged; nothing for an unfinished run."""
    from specbench_kit.runs.machine.limits import disturbances, read_machine

    if outcome.problem is not None:
        return [], []
    is_timed = any(condition.is_timed for condition in conditions)
    doubts = disturbances(read_machine(outcome.run.get("machine"))) if is_timed else []
    judged = [condition for condition in conditions if not (doubts and condition.is_timed)]
    return [line for condition in judged for line in condition.violations(outcome.summary)], doubts


def _compare(settings: AbSettings, console: "Console") -> "AbOutcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.ab import imported, run

    if settings.files:
        return imported.compare_files(settings)

    sources = DatasetOptions(dataset=settings.dataset, data_dir=settings.data_dir, sample=settings.sample)
    dataset = load_dataset(sources, settings.limit, settings.seed, console)
    with stepping_bar() as progress:
        return run.compare_servers(settings, dataset, progress, lambda line: say(console, line, style="yellow"))


def _tell(outcome: "AbOutcome", console: "Console") -> None:
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.document import Block, Paragraph, caution, paragraphs
    from specbench_kit.reports.sections import machine
    from specbench_kit.reports.sections.cautions import foreign_files, setting_cautions
    from specbench_kit.studies.ab.report import AbDescription, cautions, headline, side_by_side, what_would_tell

    summary = outcome.summary
    run = AbDescription.read(outcome.run)
    blocks: list[Block] = [
        *caution(machine.warnings(run), severe=True),
        *foreign_files(run),
        Paragraph(headline(summary)),
        side_by_side(summary),
        *paragraphs(*what_would_tell(summary)),
        *caution([*setting_cautions(run), *cautions(summary)]),
    ]
    render_terminal.show(console, blocks)
    tell_page(console, outcome.folder / "report.md")
