"""`skit report`: one or several runs as Markdown, HTML, CSV, LaTeX and plots."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from specbench_kit.cli import options
from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Option

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.metrics.comparison import Comparison
    from specbench_kit.reports.comparison.look import Look

FORMATS = "md,html,csv,latex,png,svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """Which runs are put side by side and how, and what is written of that."""

    run: common.RunFolders
    formats: Annotated[str, Option("Any of md, html, csv, latex, png, svg and pdf, with commas.", flag="format")] = (
        FORMATS
    )
    columns: Annotated[
        str,
        Option(
            "Columns of the tables of methods, with commas: speedup, headroom, throughput, acceptance-length, "
            "acceptance, draft-efficiency, wdt, ttft, tpot, itl-p50, itl-p95, itl-p99, lossless."
        ),
    ] = ""
    bare: Annotated[bool, Option("Figures without titles, for a paper.")] = False
    size: Annotated[
        Literal["screen", "column", "page"],
        Option("Of figures: for a screen, or for one column or both of a paper, with letters of at least 7 pt."),
    ] = "screen"
    against: Annotated[
        str | None,
        Option(
            "The method that all others are compared with; the fastest that can be deployed and is lossless if left "
            "out."
        ),
    ] = None
    force: Annotated[bool, Option("Compare runs that must not be compared; every output then says so.")] = False

    def wanted(self) -> list[str]:
        """The formats; an unknown one is an error before anything is read."""
        from specbench_kit.reports.comparison.files import require_formats

        found = [name.strip() for name in self.formats.split(",") if name.strip()]
        require_formats(found)
        return found

    def look(self) -> "Look":
        """How tables and figures look; an unknown column is an error before anything is read."""
        from specbench_kit.reports.comparison.look import Look, parse_columns

        return Look(parse_columns(self.columns), self.bare, self.size)

    def load(self) -> "Comparison":
        """The runs, side by side."""
        from specbench_kit.metrics.comparison import compare
        from specbench_kit.metrics.run_data import load_runs

        runs, problems = load_runs(self.run)
        return compare(runs, against=self.against, force=self.force, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting(Comparing):
    """Which runs are reported on, and where that goes."""

    run: Annotated[tuple[Path, ...], Option("Run directories, or folders that hold some.", argument=True)] = ()
    index: Annotated[
        Path | None, Option("A folder of runs, to write a page into that lists them all, instead of a report.")
    ] = None
    out: Annotated[
        Path | None, Option("Folder of the report; the run's own, or a new one beside several runs, if left out.")
    ] = None


def report(asked: Reporting, as_json: options.JsonOption = False) -> None:
    """Report on one run, or put several in one report."""
    from rich.console import Console

    from specbench_kit.reports.comparison.terminal import print_comparison

    if asked.index is not None or not asked.run:
        _index(asked, as_json)
        return
    wanted, look = asked.wanted(), asked.look()
    console = Console(stderr=as_json)
    comparison = asked.load()
    print_comparison(console, comparison, look)
    write(console, comparison, asked.out or _folder(comparison), wanted, look)
    if as_json:
        print(json.dumps(as_document(comparison), allow_nan=False))


def _index(asked: Reporting, as_json: bool) -> None:
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.reports.index import write_index

    if asked.index is None or asked.run:
        raise SkitError("name run directories to report on, or with --index alone a folder to list")
    page = write_index(asked.index)
    say(Console(stderr=as_json), f"index: {page}")
    if as_json:
        print(json.dumps({"index": str(page)}))


def write(console: "Console", comparison: "Comparison", folder: Path, formats: list[str], look: "Look") -> None:
    """Write the report and say where its pages are."""
    from specbench_kit.cli.common import say
    from specbench_kit.reports.comparison.files import write_reports

    written = write_reports(comparison, folder, formats, look=look)
    pages = [path for path in written if path.parent == folder]
    for path in pages or written[:1]:
        say(console, f"report: {path}")


def as_document(comparison: "Comparison") -> dict[str, Any]:
    """What `--json` prints."""
    from specbench_kit.reports.writing import machine

    return {
        "run_dirs": [str(run.path) for run in comparison.runs],
        "reference": comparison.reference,
        "forced": list(comparison.overruled),
        "remarks": list(comparison.remarks),
        "problems": list(comparison.problems),
        "warnings": machine.of_all(run.fields for run in comparison.runs),
        "summary": comparison.overall,
    }


def _folder(comparison: "Comparison") -> Path:
    from specbench_kit.runs.folder import unused_folder

    runs = comparison.runs
    if len(runs) == 1:
        return runs[0].path
    named = {"runs": [run.name for run in runs]}
    return unused_folder(runs[0].path.parent, "report", "-".join(comparison.datasets), named)
