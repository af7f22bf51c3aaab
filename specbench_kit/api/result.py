"""Benchmark runs on disk, with their comparison as tables, sentences and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path

import pandas

from specbench_kit.api.pictures import picture
from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.comparison import compare as compare_runs
from specbench_kit.metrics.run_data import BenchmarkRun, load_runs
from specbench_kit.reports import render_html
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.files import ALL, write_reports
from specbench_kit.reports.comparison.plots import pictures
from specbench_kit.reports.comparison.tables import to_csv
from specbench_kit.reports.document import Paragraph, caution, plain
from specbench_kit.reports.sections import headlines, machine
from specbench_kit.reports.sections.columns import COLUMNS, method_table
from specbench_kit.reports.writing.drawing import draw


@dataclass(frozen=True)
class Result:
    """Benchmark runs on disk, and their comparison.

    `folders` holds one run directory for each method and dataset, and `left_out` the reason for each method that did
    not run. Read `warnings` before you quote a figure.
    """

    folders: Sequence[Path]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _read(self) -> tuple[list[BenchmarkRun], list[str]]:
        return load_runs(self.folders)

    def compare(self, against: str | None = None, *, force: bool = False) -> Comparison:
        """Compare all methods with `against`, by default the fastest lossless method.

        Raise SkitError if the runs are not comparable, unless `force` is set.
        """
        runs, problems = self._read
        return compare_runs(runs, against=against, force=force, problems=problems)

    @cached_property
    def _all(self) -> Comparison:
        return self.compare(force=True)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the machine, about how far the methods are comparable, and about unreadable files."""
        lines = [*machine.warnings(*(run.fields for run in self._all.runs)), *wording.cautions(self._all)]
        return list(map(plain, lines))

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return plain(headlines.of_comparison(self._all))

    def to_pandas(self, table: str = "overall") -> pandas.DataFrame:
        """Return one row per method with all metrics; `table` is overall, dataset or category.

        The columns are those of report.csv: seconds end in `_s`, bounds of 95% intervals in `_low` and `_high`.
        """
        rows = pandas.read_csv(StringIO(to_csv(self._all)))
        selected = rows[rows["table"] == table].reset_index(drop=True)
        if selected.empty:
            raise SkitError(
                f"there is no table '{table}' in this result; it has {', '.join(dict.fromkeys(rows['table']))}"
            )
        return selected

    def report(self, folder: str | Path, formats: Sequence[str] = ALL) -> list[Path]:
        """Write the report of all runs into `folder` and return the paths of its files."""
        return write_reports(self._all, Path(folder), formats)

    def _repr_html_(self) -> str:
        titles = ("speedup (95%)", "acceptance length", "acceptance rate", "throughput", "TPOT", "lossless")
        table = method_table(self._all.overall, [COLUMNS[title] for title in titles])
        opening = render_html.blocks([*caution(self.warnings), Paragraph(self.headline)])
        return f"{opening}{self._picture()}{render_html.blocks([table])}"

    def _picture(self) -> str:
        """Return the figure of speedups; nothing where no speedup is known."""
        speedups = next((drawn for drawn in pictures(self._all) if drawn.name == "speedup"), None)
        if speedups is None:
            return ""
        svg = draw(speedups, wording.where(self._all), ("svg",))["svg"]
        return picture(svg, speedups.title)
