"""`skit ab`: two running servers compared request by request."""

import json
from typing import TYPE_CHECKING

from specbench_kit.cli.common import command_line, load_dataset, require_all, say
from specbench_kit.cli.options import JsonOption
from specbench_kit.core.common_options import DatasetOptions, Strict
from specbench_kit.core.option import Given
from specbench_kit.studies.ab.settings import AbSettings

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.ab.run import AbOutcome


def ab(options: Given[AbSettings], strict: Strict = False, as_json: JsonOption = False) -> None:
    """Measure both servers in turns, print the verdicts, and end with an error if a server was lost."""
    from rich.console import Console

    settings = options.make(argv=command_line())
    console = Console(stderr=as_json)
    outcome = _measure(settings, console)
    _tell(outcome, console)
    if as_json:
        from msgspec import to_builtins

        document = {"run_dirs": [str(outcome.folder)], "summary": to_builtins(outcome.summary)}
        print(json.dumps(document, allow_nan=False))
    if outcome.problem is not None:
        raise outcome.problem
    if strict:
        failed = dict.fromkeys(outcome.summary.names, 0)
        for load in outcome.summary.loads:
            for name, figures in load.servers.items():
                failed[name] += figures.failed
        require_all(failed)


def _measure(settings: AbSettings, console: "Console") -> "AbOutcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.ab import run

    sources = DatasetOptions(dataset=settings.dataset, data_dir=settings.data_dir, sample=settings.sample)
    dataset = load_dataset(sources, settings.limit, settings.seed, console)
    with stepping_bar() as progress:
        return run.compare_servers(settings, dataset, progress, lambda line: say(console, line, style="yellow"))


def _tell(outcome: "AbOutcome", console: "Console") -> None:
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.ab import wording
    from specbench_kit.reports.ab.report import verdicts
    from specbench_kit.reports.document import Block, Paragraph, caution

    summary = outcome.summary
    blocks: list[Block] = [Paragraph(wording.headline(summary)), verdicts(summary), *caution(wording.cautions(summary))]
    render_terminal.show(console, blocks)
    say(console, f"report: {outcome.folder / 'report.md'}")
