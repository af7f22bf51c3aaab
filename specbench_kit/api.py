"""The kit from Python: what the commands do, without printing. Options have the names and defaults of the commands'."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import pandas

from specbench_kit.bench.campaign import Campaign
from specbench_kit.bench.conclusion import Conclusion
from specbench_kit.bench.lanes import Progress
from specbench_kit.bench.replay_run import bench_replay
from specbench_kit.bench.settings import Settings
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import load as load_deployment
from specbench_kit.errors import SkitError
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.comparison import compare as compare_runs
from specbench_kit.metrics.run_data import Run, load_runs
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.document import ALL, write_reports
from specbench_kit.reports.comparison.tables import to_csv
from specbench_kit.reports.writing import machine

Names = str | Sequence[str]
Told = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """Runs on disk, and what is said of them side by side.

    `folders` holds one run directory for each method and dataset, `left_out` says by method why it did not run, and
    `warnings` is what must be known before anything is quoted.
    """

    folders: Sequence[Path]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _read(self) -> tuple[list[Run], list[str]]:
        return load_runs(self.folders)

    def compare(self, against: str | None = None, *, force: bool = False) -> Comparison:
        """All methods side by side, differences taken to `against`, by default the fastest that is lossless.

        SkitError where the runs differ in what must agree, unless by `force`.
        """
        runs, problems = self._read
        return compare_runs(runs, against=against, force=force, problems=problems)

    @cached_property
    def _all(self) -> Comparison:
        return self.compare(force=True)

    @property
    def warnings(self) -> list[str]:
        """Of the machine, of how far the methods can be compared, and of what could not be read."""
        lines = [*machine.of_all(run.fields for run in self._all.runs), *wording.cautions(self._all)]
        return [line.replace("`", "") for line in lines]

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return wording.headline(self._all).replace("`", "")

    def to_pandas(self, table: str = "overall") -> pandas.DataFrame:
        """One row per method with every metric; `table` is overall, dataset or category.

        Columns are those of report.csv: seconds end in `_s`, bounds of 95% intervals in `_low` and `_high`.
        """
        rows = pandas.read_csv(StringIO(to_csv(self._all)))
        found = rows[rows["table"] == table].reset_index(drop=True)
        if found.empty:
            raise SkitError(f"there is no table '{table}' here; there are {', '.join(dict.fromkeys(rows['table']))}")
        return found

    def report(self, folder: str | Path, formats: Sequence[str] = ALL) -> list[Path]:
        """Write the report of all runs into `folder`; the paths of its files."""
        return write_reports(self._all, Path(folder), formats)

    def _repr_html_(self) -> str:
        columns = ("speedup (95%)", "tokens / verify", "acceptance", "throughput", "TPOT", "lossless")
        lines = [["method", *columns]]
        lines += [[name, *(wording.COLUMNS[one](row) for one in columns)] for name, row in self._all.overall.items()]
        table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        notes = "".join(f"<p><strong>{escape(line)}</strong></p>" for line in self.warnings)
        return f"{notes}<p>{escape(self.headline)}</p><table>{table}</table>"


def bench(
    methods: Names,
    dataset: Names = "gsm8k",
    *,
    deployment: str | Deployment | None = None,
    replaced: Sequence[str] = (),
    data_dir: str | Path | None = None,
    sample: bool = True,
    tell: Told | None = None,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Decode datasets with methods, as `skit bench` does.

    `deployment` is a name, a .toml file or None for this machine, `replaced` its fields as in `link.rtt_s=0.04`.
    `options` are the fields of `bench.settings.Settings`, such as `limit`, `batch_size`, `temperature` and `out`.
    `tell` is given every line that a user should know beforehand, `progress` every finished request. SkitError where
    an option, a model or a dataset does not serve; finished requests are kept and `resume=True` goes on with the rest.
    """
    settings = _settings(methods, deployment, replaced, options)
    folder = Path(data_dir) if data_dir is not None else None
    chosen: dict[str, Any] = {"data_dir": folder, "allow_sample": sample}
    chosen |= {"limit": settings.limit, "seed": settings.seed}
    campaign = Campaign(settings, [load_dataset(name, **chosen) for name in _several(dataset)], _silent)
    for note in [*campaign.bench.surroundings.notes, *campaign.notes]:
        (tell or _silent)(note)
    campaign.run(progress or _silent)
    return _result(campaign.conclude(), campaign.bench.left_out)


def replay(
    methods: Names,
    trace: str | Path,
    *,
    deployment: str | Deployment | None = None,
    replaced: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Run chain methods on a trace of `skit record`, without models, as `skit bench --replay` does."""
    settings = _settings(methods, deployment, replaced, options)
    return _result(*bench_replay(settings, Path(trace), progress or _silent))


def load(*folders: str | Path) -> Result:
    """The runs in these folders, or right below them."""
    runs, _ = load_runs([Path(folder) for folder in folders])
    return Result([run.path for run in runs])


def _settings(
    methods: Names, deployment: str | Deployment | None, replaced: Sequence[str], options: Mapping[str, Any]
) -> Settings:
    placed = load_deployment(deployment or "local", replaced) if not isinstance(deployment, Deployment) else deployment
    known = Settings.__dataclass_fields__.keys() - {"methods", "deployment", "argv"}
    if unknown := sorted(options.keys() - known):
        raise SkitError(f"unknown option '{unknown[0]}'; known: {', '.join(sorted(known))}")
    paths = {"out": Path(options["out"])} if "out" in options else {}
    return Settings(methods=tuple(_several(methods)), deployment=placed, **{**options, **paths})


def _several(names: Names) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names


def _result(conclusions: Sequence[Conclusion], left_out: Mapping[str, str]) -> Result:
    return Result([one.directory.path for one in conclusions], dict(left_out))


def _silent(*_: Any) -> None:
    return None
