"""Sweeps, simulations and trainings, and their numbers as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas

from specbench_kit.reports.writing import machine


@dataclass(frozen=True)
class Study:
    """What a command other than `bench` leaves: its folder with the report, what was run, and its numbers.

    `saved` are folders of what a training keeps, by family of predictors.
    """

    folder: Path
    run: Mapping[str, Any]
    summary: Mapping[str, Any]
    saved: Mapping[str, Path] = field(default_factory=dict)

    @property
    def report(self) -> Path:
        """Its report, in Markdown; pictures and tables lie beside it."""
        return self.folder / "report.md"

    @property
    def warnings(self) -> list[str]:
        """What must be known of the machine before anything is quoted."""
        return machine.warnings(dict(self.run))

    def to_pandas(self) -> pandas.DataFrame:
        """A row for every point and method, system or stop rule; names of nested values are joined by dots."""
        rows = self.summary.get("rows")
        if rows is None:
            rows = [{"stop_rule": name, **values} for name, values in self.summary["decoding"].items()]
        return pandas.json_normalize(list(rows))

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><strong>{escape(line)}</strong></p>" for line in self.warnings)
        return f"{notes}<p>{escape(str(self.report))}</p>{self.to_pandas().to_html(escape=True, index=False)}"
