"""Methods on a dataset as a kind of study: one run in its folder, or several side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.errors import require
from specbench_kit.metrics import result_file
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.result import Comparison, RunResult
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import read_summary
from specbench_kit.reports.comparison import files as report_files
from specbench_kit.reports.comparison import plots, wording
from specbench_kit.reports.comparison.report import USUAL, Look
from specbench_kit.reports.comparison.tables import csv_rows
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.run import report as run_report
from specbench_kit.reports.sections import headlines, machine
from specbench_kit.reports.study import DEFAULT_COMMAND, Entry, Printed, Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunDocument
from specbench_kit.runs.folder import unused_folder

if TYPE_CHECKING:
    from rich.console import Console

BenchStudy = Study[RunDocument, Comparison]


@dataclass(frozen=True, slots=True)
class BenchKind(StudyKind[RunDocument, Comparison]):
    """Methods on the same prompts. The result of one run is a comparison with no other.

    A run's folder keeps its requests, from which the result is made whenever it is read; the folder of a result of
    several runs has the result alone.
    """

    look: Look = USUAL

    command = DEFAULT_COMMAND
    description = RunDocument
    result = result_file.ResultDocument
    summary = result_file.NAME
    joint = True
    formats = report_files.KNOWN

    def of(
        self, folders: Sequence[Path], *, against: str | None = None, force: bool = False
    ) -> BenchStudy:
        """Return the study of all runs in these folders or right below them, or the result that the
        only folder holds.

        `against` is the method that others are compared with; `force` compares runs that differ in what must agree.
        """
        kept = [(folder, file) for folder in folders if (file := self.find(folder))]
        if kept:
            folder, file = kept[0]
            alone = f"{folder} holds a result without its requests: "
            require(
                len(folders) == 1,
                f"{alone}name the runs that it was made of to put them beside others",
            )
            require(
                against is None and not force,
                f"{alone}--against and --force need the runs that it was made of",
            )
            return self.study(result_file.read(file), folder)
        for path in folders:
            require(path.exists(), f"there is no folder '{path}'")
        runs, problems = load_runs(folders)
        return self.study(compare(runs, against=against, force=force, problems=problems))

    def study(self, comparison: Comparison, folder: Path | None = None) -> BenchStudy:
        """Return a comparison as a study.

        Its folder is that of its only run, or a new one beside the first of several, unless it is named.
        """
        runs = comparison.runs
        if folder is None:
            first = Path(comparison.folders[0])
            identity = {"runs": [run.name for run in runs]}
            name = "-".join(comparison.datasets)
            folder = (
                first if len(runs) == 1 else unused_folder(first.parent, "report", name, identity)
            )
        return Study(self, folder, runs[0].fields, comparison)

    def find(self, folder: Path) -> Path | None:
        """Return the file of a result in a folder that holds no runs; None if there is none."""
        return result_file.find(folder)

    def read(self, folder: Path) -> BenchStudy:
        """Return the run or the result in a folder."""
        return self.of([folder])

    def entry(self, folder: Path) -> Entry:
        """Return the run or the result in a folder as a list of many shows it.

        The requests of a run are not read, since a list is to be there at once.
        """
        if self.find(folder):
            study = self.read(folder)
            return Entry(None, study.runs, study.headline, self.cautions(study))
        directory = RunDirectory.open(folder)
        summary = read_summary(directory.summary())
        run = RunResult(name=folder.name, fields=directory.document, summary=summary)
        headline = headlines.of_run(run.fields, summary)
        return Entry(run.fields, [run.fields], headline, run_report.cautions(run))

    def descriptions(self, study: BenchStudy) -> Sequence[RunDocument]:
        """Return the descriptions of all runs."""
        return [run.fields for run in study.result.runs]

    def headline(self, study: BenchStudy) -> str:
        """Return the fastest method and how the others compare with it, or the result of the only
        run.
        """
        runs = study.result.runs
        if len(runs) > 1:
            return headlines.of_comparison(study.result)
        return headlines.of_run(runs[0].fields, runs[0].summary)

    def cautions(self, study: BenchStudy) -> list[str]:
        """Return what limits the result."""
        runs = study.result.runs
        if len(runs) > 1:
            return wording.cautions(study.result)
        return run_report.cautions(runs[0], study.result.problems)

    def document(self, study: BenchStudy, figures: Sequence[Figure]) -> Document:
        """Return the page, which is another one for one run than for several."""
        exports = report_files.exports_in(study.folder)
        return report_files.document(study.result, figures, self.look, exports)

    def files(self, study: BenchStudy) -> Tables:
        """Return a row per table and method, with every metric."""
        return {"report.csv": csv_rows(study.result)}

    def pictures(self, study: BenchStudy) -> Iterable[Picture]:
        """Return the pictures that have something to show, that of speedups first."""
        return plots.pictures(study.result)

    def setting(self, study: BenchStudy) -> str:
        """Return the datasets, the models and the time."""
        return wording.where(study.result)

    def pages(
        self,
        study: BenchStudy,
        folder: Path,
        formats: Sequence[str],
        hint: str = "choose another --out",
    ) -> Iterable[Path]:
        """Write the page, its pictures and timelines, its tables for programs and papers, and the
        result; `hint` says what to do if the folder cannot be written.
        """
        return report_files.write_reports(study.result, folder, formats, hint, self.look)

    def content(self, result: Comparison) -> object:
        """Return what the file of the result holds."""
        return to_builtins(result_file.document_of(result))

    def named_files(self, folder: Path, written: Sequence[Path]) -> Sequence[Path]:
        """Return the page in every form, and the tables."""
        pages = [path for path in written if path.parent == folder and path.name != self.summary]
        return pages or written[:1]

    def printed(self, study: BenchStudy) -> Printed:
        """Return what `--json` prints: the rows over all requests, and what limits them."""
        comparison = study.result
        return {
            "run_dirs": comparison.folders,
            "reference": comparison.reference,
            "forced": list(comparison.overruled),
            "remarks": list(comparison.remarks),
            "problems": list(comparison.problems),
            "warnings": machine.warnings(*study.runs),
            "summary": to_builtins(comparison.overall),
        }

    def print(self, console: "Console", study: BenchStudy) -> None:
        """Print a table with a row per method, what the intervals show, and all cautions."""
        from specbench_kit.reports.comparison.terminal import print_comparison

        print_comparison(console, study.result, self.look)


BENCH = BenchKind()
KINDS = (BENCH,)
