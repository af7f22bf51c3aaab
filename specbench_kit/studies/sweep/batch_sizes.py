"""The same benchmark at several batch sizes: what each method's throughput costs in time per token."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench_kit.core.csv_text import csv_text
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.reports.batch_curve.plots import draw_curves
from specbench_kit.reports.batch_curve.report import render
from specbench_kit.runs.folder import replace_file, to_json, unused_folder, write_text
from specbench_kit.studies.bench.campaign import Campaign
from specbench_kit.studies.bench.lanes import BASELINE, Progress
from specbench_kit.studies.bench.outputs.conclusion import Conclusion
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class BatchSizePoint:
    """One method at one batch size; `tpot_s` is the mean over requests."""

    method: str
    batch_size: int
    throughput: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class BatchSizeCurves:
    """What was found, where it lies, and why methods are missing."""

    folder: Path
    summary: dict[str, Any]
    left_out: dict[str, str]


def run_curves(
    settings: BenchSettings, sizes: Sequence[int], source: LoadedDataset | Path, report: Report
) -> BatchSizeCurves:
    """Benchmark every size, live on a dataset or on a trace, each into run directories of its own; then the figures."""
    places: list[BatchSizePoint] = []
    runs: list[str] = []
    left_out: dict[str, str] = {}
    described: dict[str, Any] = {}
    for size in sizes:
        conclusions, missing = _bench(replace(settings, batch_size=size), source, report)
        left_out |= missing
        places += _places(conclusions, size)
        runs += [str(one.directory.path.name) for one in conclusions]
        described = conclusions[0].directory.run
    about = {name: described.get(name) for name in ("dataset", "time_kind", "deployment", "models", "requests")}
    name = str((about["dataset"] or {}).get("name"))
    defining = {"methods": list(settings.methods), "sizes": list(sizes), "runs": runs}
    folder = unused_folder(settings.out, "batch-sizes", name, defining)
    rows = [asdict(place) for place in places]
    for picture, content in draw_curves(rows, about).items():
        replace_file(folder / "plots" / picture, content)
    write_text(folder / "curves.csv", csv_text(rows))
    write_text(
        folder / "report.md", render(rows, about, sorted({one.name for one in (folder / "plots").glob("*.png")}))
    )
    summary = {"places": rows, "runs": runs}
    write_text(folder / "run.json", to_json({"command": "batch-sizes", **about, "argv": list(settings.argv)}))
    write_text(folder / "summary.json", to_json(summary))
    return BatchSizeCurves(folder, summary, left_out)


def _bench(
    settings: BenchSettings, source: LoadedDataset | Path, report: Report
) -> tuple[list[Conclusion], dict[str, str]]:
    if isinstance(source, Path):
        return bench_replay(settings, source, report)
    campaign = Campaign(settings, [source], lambda *_: None)
    campaign.run(report)
    return campaign.conclude(), campaign.bench.left_out


def _places(conclusions: Sequence[Conclusion], size: int) -> list[BatchSizePoint]:
    baselines = [one.summary["baseline"]["overall"] for one in conclusions if one.summary.get("baseline")]
    found = [(BASELINE, baselines[0])] if baselines else []
    found += [(one.summary["method"], one.summary["overall"]) for one in conclusions]
    return [
        BatchSizePoint(method, size, row["throughput"], row["tpot"]["mean"])
        for method, row in found
        if row.get("throughput") and row["tpot"].get("mean")
    ]
