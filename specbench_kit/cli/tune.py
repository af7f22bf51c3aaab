"""`skit tune`: choose the options of each method by replaying a trace."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import JsonOption, command_line, print_json, require_file, say, say_left_out
from specbench_kit.core.common_options import DeploymentOptions
from specbench_kit.core.option import OUTPUT, Option, select_fields
from specbench_kit.studies.tuning.options import TuningOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.bench.tuned_options import TunedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(TuningOptions):
    """The methods to tune, the traces that they replay, and the file of the result."""

    out: Annotated[Path, Option("File to write, for `skit bench --tuned`.", OUTPUT)] = Path("results/tuned.json")


def tune(options: TuneOptions, placement: DeploymentOptions, as_json: JsonOption = False) -> None:
    """Tune the methods, save their options and print what each gains."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load
    from specbench_kit.runs.folder import write_text
    from specbench_kit.studies.bench import tuned_options
    from specbench_kit.studies.tuning import run as tuning
    from specbench_kit.studies.tuning.report import render

    require_file(options.out, "tuned.json")
    settings = tuning.TuningSettings(
        **select_fields(tuning.TuningSettings, asdict(options)),
        deployment=load(placement.deployment, placement.replaced),
        argv=command_line(),
    )
    console = Console(stderr=as_json)
    with stepping_bar() as report:
        tuned, left_out = tuning.tune(settings, report)
    tuned_options.save(tuned, options.out)
    page = options.out.with_suffix(".html")
    write_text(page, render(tuned, left_out))
    _print_gains(console, tuned)
    say_left_out(console, left_out)
    say(console, f"report: {page}")
    say(console, f"tuned: {options.out}; run it with {_next_command(options, placement, tuned)}")
    if as_json:
        print_json({"file": str(options.out), **asdict(tuned), "left_out": left_out})


def _next_command(options: TuneOptions, placement: DeploymentOptions, tuned: "TunedOptions") -> str:
    """Return the benchmark of what was tuned, of a bundled trace on its half for reports."""
    words = ["skit", "bench", *(word for name in tuned.methods for word in ("--method", name))]
    if len(options.traces) == 1 and (name := str(options.traces[0])).endswith(TUNE):
        words += ["--replay", name.removesuffix(TUNE)]
    words += ["--deployment", placement.deployment] if placement.deployment else []
    words += [word for text in placement.replaced for word in ("--set", text)]
    return shlex.join([*words, "--tuned", str(options.out)])


TUNE = "-tune"
"""What the name of a bundled trace for tuning ends with; the other half, for reports, is called without it."""


def _print_gains(console: "Console", tuned: "TunedOptions") -> None:
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.document import Block, Paragraph, caution
    from specbench_kit.studies.tuning import report

    opening = [Paragraph(f"**{report.headline(tuned)}**")] if tuned.methods else []
    drafts: list[Block] = []
    if tuned.drafts:
        drafts = [report.draft_table(tuned), Paragraph(f"**{report.draft_headline(tuned)}**")]
    render_terminal.show(
        console,
        [
            *opening,
            report.table(tuned),
            *report.notes(tuned),
            *drafts,
            *caution([*report.warnings(tuned), *report.cautions(tuned)]),
        ],
    )
