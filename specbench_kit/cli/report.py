"""`skit report` and `skit compare`: runs side by side on the terminal, and as Markdown, HTML, CSV, LaTeX and figures.

`skit compare` refuses runs that are not comparable.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specbench_kit.cli.common import JsonOption, print_json
from specbench_kit.cli.exit_codes import FAILED, INCONCLUSIVE
from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import Option

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.metrics.result import Comparison
    from specbench_kit.reports.comparison.report import Look


FORMATS = "md,html,csv,latex,json,png,svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """The runs to put side by side, and how tables and figures show them."""

    run: common.RunFolders
    formats: Annotated[
        str,
        Option(
            "File formats, separated by commas: md, html, csv, latex, json (the result, from which `skit report` makes "
            "all others again), png, svg and pdf.",
            flag="format",
        ),
    ] = FORMATS
    columns: Annotated[
        str,
        Option(
            "Columns of the method tables, separated by commas: typical-speedup, speedup-in-all, headroom, throughput, "
            "acceptance-length, tokens-per-step, hit-rate, acceptance-rate, draft-efficiency, wdt, ttft, tpot, "
            "itl-p50, itl-p95, itl-p99, lossless."
        ),
    ] = ""
    bare: Annotated[bool, Option("Draw figures without titles, for a paper.")] = False
    size: Annotated[
        Literal["screen", "column", "page"],
        Option(
            "Width of figures: a screen, one column of a paper, or its page; text is at least 7 pt."
        ),
    ] = "screen"
    against: Annotated[
        str | None,
        Option(
            "Method that all others are compared with; the default is the fastest lossless one that can be deployed."
        ),
    ] = None
    force: Annotated[
        bool, Option("Compare runs that are not comparable; every output then says so.")
    ] = False

    def format_names(self) -> list[str]:
        """Return the formats; SkitError for an unknown one, before any run is read."""
        from specbench_kit.reports.comparison.files import require_formats

        names = [name.strip() for name in self.formats.split(",") if name.strip()]
        require_formats(names)
        return names

    def look(self) -> "Look":
        """Return the look of tables and figures; SkitError for an unknown column, before any run is
        read.
        """
        from specbench_kit.reports.comparison.report import Look, parse_columns

        return Look(parse_columns(self.columns), self.bare, self.size)

    def load(self) -> "Comparison":
        """Read the runs and compare them, or read the result in a folder that holds no runs."""
        from specbench_kit.metrics import result_file
        from specbench_kit.metrics.comparison import compare
        from specbench_kit.metrics.run_data import load_runs

        kept = [(folder, file) for folder in self.run if (file := result_file.find(folder))]
        if kept:
            folder, file = kept[0]
            alone = f"{folder} holds a result without its requests: "
            require(
                len(self.run) == 1,
                f"{alone}name the runs that it was made of to put them beside others",
            )
            require(
                self.against is None and not self.force,
                f"{alone}--against and --force need the runs that it was made of",
            )
            return result_file.read(file)
        for path in self.run:
            require(path.exists(), f"there is no folder '{path}'")
        runs, problems = load_runs(self.run)
        return compare(runs, against=self.against, force=self.force, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions(ComparisonOptions):
    """The runs to report on and the folder of the report, or a folder of runs to list."""

    run: Annotated[
        tuple[Path, ...],
        Option("Folders that any command wrote, or folders of such.", argument=True),
    ] = ()
    index: Annotated[
        Path | None,
        Option("Instead of a report, write a page into this folder that lists all of its runs."),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            "Folder of the report; the default is the run's or the result's own folder, or a new one next to the first "
            "of several runs."
        ),
    ] = None


def report(options: ReportOptions, as_json: JsonOption = False) -> None:
    """Print the runs and write their report, or write an index page with --index."""
    from rich.console import Console

    from specbench_kit.reports.comparison.terminal import print_comparison
    from specbench_kit.runs.folder import unused_folder

    if options.index is not None or not options.run:
        _index(options, as_json)
        return
    formats = options.format_names()
    look = options.look()
    console = Console(stderr=as_json)
    if _report_studies(options, console, formats, as_json):
        return
    comparison = options.load()
    print_comparison(console, comparison, look)
    folder = options.out
    runs = comparison.runs
    if folder is None and not comparison.folders:
        (folder,) = options.run
    elif folder is None and len(runs) == 1:
        folder = Path(comparison.folders[0])
    elif folder is None:
        identity = {"runs": [run.name for run in runs]}
        folder = unused_folder(
            Path(comparison.folders[0]).parent, "report", "-".join(comparison.datasets), identity
        )
    write(console, comparison, folder, formats, look)
    if as_json:
        print_json(as_document(comparison))


def _report_studies(
    options: ReportOptions, console: "Console", formats: list[str], as_json: bool
) -> bool:
    """Make the pages of other commands' folders again, each in its folder or in --out; return
    whether it did.
    """
    from specbench_kit.cli.common import print_json, say
    from specbench_kit.reports.study import FORMATS
    from specbench_kit.studies.kinds import find_studies, reading

    studies, others = find_studies(options.run)
    if not studies:
        return False
    commands = " and ".join(dict.fromkeys(f"skit {study.kind.command}" for study in studies))
    require(
        not others,
        f"give runs of skit bench and of {commands} one after the other: they share no table",
    )
    require(
        not options.columns
        and not options.bare
        and options.size == "screen"
        and not options.against,
        f"--columns, --bare, --size and --against are for runs of skit bench: leave them out for {commands}",
    )
    require(
        options.out is None or len(studies) == 1,
        f"--out is one folder: give one of the {len(studies)} studies",
    )
    for study in studies:
        with reading(study):
            study.kind.print(console, study)
            written = study.pages(
                options.out or study.folder, [name for name in formats if name in FORMATS]
            )
        require(
            bool(written),
            f"skit {study.kind.command} has no such format; it has {', '.join(FORMATS)}",
        )
        pages = [
            path
            for path in written
            if path.stem == study.kind.page and path.suffix in (".html", ".md")
        ]
        say(console, f"report: {(pages or written)[-1]}")
    if as_json:
        print_json(
            {
                "run_dirs": [str(study.folder) for study in studies],
                "summary": [one.kind.content(one.result) for one in studies],
            }
        )
    return True


def _index(options: ReportOptions, as_json: bool) -> None:
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.studies.index import write_index

    if options.index is None or options.run:
        raise SkitError(
            "give run directories to report on, or --index with a folder and no run directory"
        )
    page = write_index(options.index)
    say(Console(stderr=as_json), f"index: {page}")
    if as_json:
        print_json({"index": str(page)})


def write(
    console: "Console", comparison: "Comparison", folder: Path, formats: list[str], look: "Look"
) -> None:
    """Write the report into `folder` and print the paths of its pages."""
    from specbench_kit.cli.common import say
    from specbench_kit.metrics import result_file
    from specbench_kit.reports.comparison.files import write_reports

    written = write_reports(comparison, folder, formats, look=look)
    pages = [path for path in written if path.parent == folder and path.name != result_file.NAME]
    for path in pages or written[:1]:
        say(console, f"report: {path}")


def as_document(comparison: "Comparison") -> dict[str, object]:
    """Return what `--json` prints of a comparison."""
    from msgspec import to_builtins

    from specbench_kit.reports.sections import machine

    return {
        "run_dirs": comparison.folders,
        "reference": comparison.reference,
        "forced": list(comparison.overruled),
        "remarks": list(comparison.remarks),
        "problems": list(comparison.problems),
        "warnings": machine.warnings(*(run.fields for run in comparison.runs)),
        "summary": to_builtins(comparison.overall),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions(ComparisonOptions):
    """The runs to compare, the conditions under which the comparison fails, and the folder of its
    report.
    """

    fail_if: Annotated[
        tuple[str, ...],
        Option(
            "Exit with 1 if this condition holds for any method: a metric, an operator and a number, such as "
            "'speedup<0.95', 'itl.p99>50ms' or 'speedup.high<1'. For two runs of one method, 'slower by 5%' asks "
            "whether the second is slower, by a test that fails 5% of equal versions and 80% of those that lost 5%; "
            "'baseline_ratio<0.9' compares the baselines, which differ if the machine or the engine changed. Exit "
            "with 2 if the condition cannot be evaluated, for instance because a run cannot be read, and with 3 if it "
            "is about time and a run was timed on a busy or disturbed machine, or if the runs are too small to tell. "
            "May be given several times."
        ),
    ] = ()
    out: Annotated[Path | None, Option("Folder for a report; without it, none is written.")] = None


def compare(options: CheckOptions, as_json: JsonOption = False) -> None:
    """Print the comparison and exit with the code of the conditions."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.metrics.gate import (
        Condition,
        SlowerGate,
        disturbed_runs,
        require_readable,
        violations,
    )
    from specbench_kit.reports.comparison.terminal import print_comparison

    conditions = [SlowerGate.parse(text) or Condition.parse(text) for text in options.fail_if]
    formats = options.format_names()
    look = options.look()
    console = Console(stderr=as_json)
    comparison = options.load()
    print_comparison(console, comparison, look)
    if options.out is not None:
        write(console, comparison, options.out, formats, look)
    if conditions:
        require_readable(comparison)
    disturbances = (
        disturbed_runs(comparison) if any(condition.is_timed for condition in conditions) else []
    )
    judged = [condition for condition in conditions if not (disturbances and condition.is_timed)]
    failed: list[str] = []
    inconclusive = [f"{line}; run it again on a quiet machine" for line in disturbances]
    for condition in judged:
        if isinstance(condition, SlowerGate):
            result = condition.judge(comparison)
            failed += result.failed
            inconclusive += result.too_small
        else:
            failed += violations(comparison, condition)
    if as_json:
        document = as_document(comparison) | {"failed": failed, "inconclusive": inconclusive}
        print_json(document)
    for line in failed:
        say(Console(stderr=True), f"failed: {line}", style="bold red")
    for line in inconclusive:
        say(Console(stderr=True), f"inconclusive: {line}", style="bold red")
    if failed:
        raise typer.Exit(FAILED)
    if inconclusive:
        raise typer.Exit(INCONCLUSIVE)
    if judged:
        say(
            console,
            f"passed: {', '.join(condition.text for condition in judged)} holds for no method",
        )
