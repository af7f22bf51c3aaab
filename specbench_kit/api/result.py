"""Results on disk as tables, sentences, reports and figures: of benchmarks, sweeps, simulations and
trainings.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import pandas

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import csv_text
from specbench_kit.metrics.comparability import refusal
from specbench_kit.metrics.comparison import comparable_groups, differences
from specbench_kit.metrics.comparison import compare as compare_runs
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import BenchmarkRun, load_runs
from specbench_kit.reports import render_html
from specbench_kit.reports.comparison.files import ALL
from specbench_kit.reports.document import Figure, Paragraph, caution, plain
from specbench_kit.reports.sections.columns import COLUMNS, SPEEDUP, method_table
from specbench_kit.reports.study import Tables
from specbench_kit.reports.writing.drawing import draw, safe_svg
from specbench_kit.studies.bench.kind import BENCH, BenchStudy
from specbench_kit.studies.kinds import AnyStudy, warnings


@dataclass(frozen=True, repr=False)
class Result:
    """Benchmark runs on disk, and their comparison.

    `folders` holds one run directory for each method and dataset, and `left_out` the reason for each method that did
    not run. `made` are the runs where they are at hand, so that no file is read again. A result that was read from its
    file is `kept`, and has no runs. Read `warnings` before you quote a figure.
    Runs that cannot be compared have no table, figure or sentence in common unless they are `pooled`, as those of one
    command are; `groups` holds a result for those of them that can.
    """

    folders: Sequence[Path]
    left_out: Mapping[str, str] = field(default_factory=dict)
    kept: BenchStudy | None = None
    pooled: bool = False
    made: Sequence[BenchmarkRun] = ()

    def __repr__(self) -> str:
        # A dataclass would show every run, which floods a session.
        said = "runs that cannot be compared" if self._obstacle is not None else self.headline
        return f"<Result of skit bench, {len(self.folders)} runs: {said}>"

    @cached_property
    def _read(self) -> tuple[list[BenchmarkRun], list[str]]:
        return (list(self.made), []) if self.made else load_runs(self.folders)

    def compare(self, against: str | None = None, *, force: bool = False) -> Comparison:
        """Compare all methods with `against`, by default the fastest lossless method.

        Raise SkitError if the runs are not comparable, unless `force` is set.
        """
        require(
            self.kept is None,
            "this result was kept without its requests: load the runs that it was made of",
        )
        runs, problems = self._read
        return compare_runs(runs, against=against, force=force, problems=problems)

    @cached_property
    def groups(self) -> "Sequence[Result]":
        """The runs in groups that can be compared, each of them a result; this one alone if all of
        them can.
        """
        if self._obstacle is None:
            return [self]
        return [Result([run.path for run in group]) for group in comparable_groups(self._read[0])]

    @cached_property
    def _obstacle(self) -> str | None:
        """Why the runs share no table; None if they do."""
        if self.kept is not None or self.pooled:
            return None
        found = differences(self._read[0])
        remedy = (
            "`groups` holds a result for those that can, load(..., force=True) pools all of them"
        )
        return refusal(found, remedy) if found else None

    @cached_property
    def study(self) -> BenchStudy:
        """The runs side by side; SkitError if they cannot be compared."""
        if self._obstacle is not None:
            raise SkitError(self._obstacle)
        return self.kept or BENCH.study(self.compare(force=True))

    @property
    def result(self) -> Comparison:
        """What was found, with a typed field for each entry of `result.json`."""
        return self.study.result

    @property
    def warnings(self) -> list[str]:
        """Warnings about the machine, about how far the methods are comparable, and about
        unreadable files.
        """
        if self._obstacle is not None:
            parts = [line for group in self.groups for line in group.warnings]
            return [f"NOT COMPARABLE: {self._obstacle}.", *dict.fromkeys(parts)]
        return list(map(plain, warnings(self.study)))

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return plain(self.study.headline)

    @property
    def tables(self) -> Tables:
        """The rows of every table by its name: all requests, and each dataset and category where
        there are several.
        """
        (rows,) = BENCH.files(self.study).values()
        names = dict.fromkeys(str(row["table"]) for row in rows)
        return {name: [row for row in rows if row["table"] == name] for name in names}

    def to_pandas(self, table: str = "overall") -> pandas.DataFrame:
        """Return one row per method with all metrics; `table` is overall, dataset or category.

        The columns are those of report.csv: seconds end in `_s`, bounds of 95% intervals in `_low`
        and `_high`.
        """
        tables = self.tables
        require(
            table in tables,
            f"there is no table '{table}' in this result; it has {', '.join(tables)}",
        )
        # All tables are read at once, so that a column has one type in each of them.
        rows = pandas.read_csv(
            StringIO(csv_text([row for part in tables.values() for row in part]))
        )
        return rows[rows["table"] == table].reset_index(drop=True)

    def report(self, folder: str | Path, formats: Sequence[str] = ALL) -> list[Path]:
        """Write the report of all runs into `folder` and return the paths of its files."""
        return self.study.pages(Path(folder), formats)

    def _repr_html_(self) -> str:
        if self._obstacle is not None:
            notes = render_html.blocks(caution([f"NOT COMPARABLE: {self._obstacle}."]))
            return notes + "".join(group._repr_html_() for group in self.groups)
        titles = (
            SPEEDUP.title,
            "acceptance length",
            "acceptance rate",
            "throughput",
            "TPOT",
            "lossless",
        )
        table = method_table(self.result.overall, [COLUMNS[title] for title in titles])
        opening = render_html.blocks([*caution(self.warnings), Paragraph(self.headline)])
        drawn = first_picture(self.study)
        return f"{opening}{drawn}{render_html.blocks([table])}"


@dataclass(frozen=True, repr=False)
class Study:
    """The result of a command other than a benchmark, as it was just made or as its folder holds
    it.

    `saved` maps each family of predictors that a training saved to its folder.
    """

    study: AnyStudy
    saved: Mapping[str, Path] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Study of skit {self.command} in {self.folder}: {self.headline}>"

    @property
    def command(self) -> str:
        """The command whose result it is."""
        return self.study.kind.command

    @property
    def folder(self) -> Path:
        """The folder that holds the page, `run.json` and the result."""
        return self.study.folder

    @property
    def run(self) -> Any:
        """What was run: the content of `run.json`, with a typed field for each entry."""
        return self.study.run

    @property
    def result(self) -> Any:
        """What was found: the content of `summary.json`, with a typed field for each entry."""
        return self.study.result

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return plain(self.study.headline)

    @property
    def report(self) -> Path:
        """The path of the page in Markdown; figures and tables are next to it."""
        return self.folder / f"{self.study.kind.page}.md"

    @property
    def warnings(self) -> list[str]:
        """What limits the result, to be read before a number is quoted."""
        return list(map(plain, warnings(self.study)))

    @property
    def tables(self) -> Tables:
        """The rows of every table by its name, the main one first."""
        return {
            name.removesuffix(".csv"): rows
            for name, rows in self.study.kind.files(self.study).items()
        }

    def to_pandas(self, table: str = "") -> pandas.DataFrame:
        """Return a table, by default the main one; its columns are those of the CSV file beside the
        page.
        """
        tables = self.tables
        name = table or next(iter(tables))
        require(
            name in tables, f"there is no table '{name}' in this result; it has {', '.join(tables)}"
        )
        return pandas.DataFrame(list(tables[name]))

    def write_pages(self, folder: str | Path) -> list[Path]:
        """Write the page, its pictures and its tables into a folder, and return the paths of the
        files.
        """
        return self.study.pages(Path(folder))

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><strong>{escape(line)}</strong></p>" for line in self.warnings)
        table = self.to_pandas().to_html(escape=True, index=False)
        drawn = first_picture(self.study)
        return (
            f"{notes}<p>{escape(self.headline)}</p>{drawn}<p>{escape(str(self.report))}</p>{table}"
        )


def first_picture(study: AnyStudy) -> str:
    """Return the first picture of the page of a study; nothing where there is none."""
    kind = study.kind
    first = next(iter(kind.pictures(study)), None)
    if first is not None:
        return picture(draw(first, kind.setting(study), ("svg",))["svg"], first.title)
    files = sorted((study.folder / "plots").glob("*.svg"))
    shown = next(
        (block for block in kind.document(study, []).blocks if isinstance(block, Figure)),
        None,
    )
    named = [path for path in files if shown is not None and path.stem == Path(shown.path).stem]
    return (
        picture(safe_svg(named[0].read_bytes()), shown.title) if named and shown is not None else ""
    )


def picture(svg: bytes, title: str) -> str:
    """Return a drawing as an image that needs no file and takes no style from the notebook."""
    content = b64encode(svg).decode()
    return f'<img alt="{escape(title)}" style="max-width: 100%" src="data:image/svg+xml;base64,{content}">'
