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
from specbench_kit.core.option import Option, WithoutEffect
from specbench_kit.core.without_effect import beside, unless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from specbench_kit.reports.comparison.report import Look
    from specbench_kit.reports.study import Printed
    from specbench_kit.studies.bench.kind import BenchStudy
    from specbench_kit.studies.kinds import AnyStudy


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
            "acceptance-length, tokens-per-step, hit-rate, acceptance-rate, draft-efficiency, forbidden-drafts, "
            "forced-tokens, accepted-choices, valid-by-the-grammar, wdt, ttft, tpot, itl-p50, itl-p95, itl-p99, "
            "lossless."
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

    def study(self, folders: "Sequence[Path]") -> "BenchStudy":
        """Read the benchmark runs in folders and compare them, or read the result in a folder that
        holds no runs.
        """
        from specbench_kit.studies.bench.kind import BenchKind

        kind = BenchKind(self.look())
        return kind.of(folders, against=self.against, force=self.force)


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


INDEX = WithoutEffect(beside("index"), "the page only lists runs; leave out one of them")


def report(
    options: Annotated[
        ReportOptions,
        INDEX.of("formats", "columns", "bare", "size", "against", "force", "out"),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print the runs and write their report, or write an index page with --index."""
    from rich.console import Console

    from specbench_kit.reports.study import reading
    from specbench_kit.studies.kinds import find_studies

    if options.index is not None or not options.run:
        _index(options, as_json)
        return
    formats = options.format_names()
    options.look()
    console = Console(stderr=as_json)
    studies, runs = find_studies(options.run)
    if studies:
        _refuse_options_of_tables(options, studies, runs)
    else:
        studies = [options.study(runs)]
    for study in studies:
        with reading(study):
            study.kind.print(console, study)
            _write_pages(console, study, options.out or study.folder, formats)
    if as_json:
        print_json(_document(studies))


def _refuse_options_of_tables(
    options: ReportOptions, studies: "Sequence[AnyStudy]", runs: "Sequence[Path]"
) -> None:
    """Raise SkitError for runs that share a table beside studies that do not, and for options of
    such tables.
    """
    commands = " and ".join(dict.fromkeys(f"skit {study.kind.command}" for study in studies))
    require(
        not runs,
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


def _index(options: ReportOptions, as_json: bool) -> None:
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.studies.reporting.index import write_index

    if options.index is None or options.run:
        raise SkitError(
            "give run directories to report on, or --index with a folder and no run directory"
        )
    page = write_index(options.index)
    say(Console(stderr=as_json), f"index: {page}")
    if as_json:
        print_json({"index": str(page)})


def _write_pages(
    console: "Console", study: "AnyStudy", folder: Path, formats: "Sequence[str]"
) -> None:
    """Write the pages of a study into a folder and print their paths."""
    from specbench_kit.cli.common import say

    kind = study.kind
    written = study.pages(folder, [name for name in formats if name in kind.formats])
    require(
        bool(written),
        f"skit {kind.command} has no such format; it has {', '.join(kind.formats)}",
    )
    for path in kind.named_files(folder, written):
        say(console, f"report: {path}")


def _document(studies: "Sequence[AnyStudy]") -> "Printed":
    """Return what `--json` prints of studies; of several, the folders and the results in lists."""
    first, *others = (study.kind.printed(study) for study in studies)
    for other in others:
        first = {name: [*value, *other[name]] for name, value in first.items()}
    return first


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


UNLESS_WRITTEN = WithoutEffect(unless("out"), "only the files of a report have it; give both")


def compare(
    options: Annotated[CheckOptions, UNLESS_WRITTEN.of("formats", "bare", "size")],
    as_json: JsonOption = False,
) -> None:
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

    conditions = [SlowerGate.parse(text) or Condition.parse(text) for text in options.fail_if]
    formats = options.format_names()
    options.look()
    console = Console(stderr=as_json)
    study = options.study(options.run)
    comparison = study.result
    study.kind.print(console, study)
    if options.out is not None:
        _write_pages(console, study, options.out, formats)
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
        gate = {"failed": failed, "inconclusive": inconclusive}
        print_json({**study.kind.printed(study), **gate})
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
