"""The results of sweeps, simulations and trainings as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas

from specbench_kit.api.pictures import first_picture
from specbench_kit.reports.document import plain
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions


@dataclass(frozen=True)
class Study:
    """The result of a sweep, a simulation or a training.

    `folder` holds the report, `run` describes what was run (the content of run.json) and `summary` holds the numbers.
    `saved` maps each family of predictors that a training saved to its folder.
    """

    folder: Path
    run: Mapping[str, Any]
    summary: Mapping[str, Any]
    saved: Mapping[str, Path] = field(default_factory=dict)

    @property
    def report(self) -> Path:
        """The path of the report in Markdown; figures and tables are next to it."""
        return self.folder / "report.md"

    @property
    def warnings(self) -> list[str]:
        """What limits the result, to be read before a number is quoted."""
        run = dict(self.run)
        return list(map(plain, dict.fromkeys([*machine.warnings(run), *setting_cautions(run)])))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per point and method, system or stopping criterion; nested names are joined by dots."""
        rows = self.summary.get("rows")
        if rows is None:
            rows = [{"stop_rule": name, **values} for name, values in self.summary["decoding"].items()]
        return pandas.json_normalize(list(rows))

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><strong>{escape(line)}</strong></p>" for line in self.warnings)
        table = self.to_pandas().to_html(escape=True, index=False)
        return f"{notes}<p>{escape(str(self.report))}</p>{first_picture(self.folder)}{table}"
