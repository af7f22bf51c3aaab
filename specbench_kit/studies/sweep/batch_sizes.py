"""The same benchmark at several batch sizes: each method's throughput against its time per token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import to_builtins

from specbench_kit.core.files import replace_file
from specbench_kit.core.plain_text import csv_text
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.reports.render_html import write_page
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunDocument
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.provenance import shareable
from specbench_kit.studies.bench.campaign import Campaign
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import BASELINE, Progress
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.sweep.batch_curve import BatchSizePoint, build, draw_curves


@dataclass(frozen=True, slots=True)
class BatchSizeCurves:
    """The folder of the curves, their points and runs, why methods are missing, and the run of the last batch size."""

    folder: Path
    points: list[BatchSizePoint]
    runs: list[str]
    left_out: dict[str, str]
    run: RunDocument

    @property
    def summary(self) -> dict[str, object]:
        """The content of `summary.json`."""
        return {"places": to_builtins(self.points), "runs": self.runs}


def run_curves(
    settings: BenchSettings,
    sizes: Sequence[int],
    source: LoadedDataset | Path,
    report: Callable[[Progress], None],
) -> BatchSizeCurves:
    """Benchmark every batch size on a dataset or a trace, each into its own run directories, and draw the curves."""
    points: list[BatchSizePoint] = []
    runs: list[str] = []
    left_out: dict[str, str] = {}
    last_run: RunDirectory | None = None
    for size in sizes:
        sized = replace(settings, batch_size=size)
        if isinstance(source, Path):
            conclusions, missing, _ = bench_replay(sized, source, report)
        else:
            with Campaign(sized, [source], lambda *_: None) as campaign:
                campaign.run(report)
                conclusions = campaign.conclude()
                missing = campaign.bench.left_out
        left_out |= missing
        points += _points(conclusions, size)
        runs += [conclusion.directory.path.name for conclusion in conclusions]
        last_run = conclusions[0].directory
    # The runs differ in batch size only, so that any of them describes the conditions of all.
    assert last_run is not None
    conditions = {name: last_run.run.get(name) for name in ("dataset", "time_kind", "deployment", "models", "requests")}
    dataset = str((conditions["dataset"] or {}).get("name"))
    defining = {"methods": list(settings.methods), "sizes": list(sizes), "runs": runs}
    folder = unused_folder(settings.out, "batch-sizes", dataset, defining)
    pictures = draw_curves(points, last_run.document)
    for picture, content in pictures.items():
        replace_file(folder / "plots" / picture, content)
    write_text(folder / "curves.csv", csv_text(to_builtins(points)))
    png_files = sorted(picture for picture in pictures if picture.endswith(".png"))
    write_page(folder, build(points, last_run.document, png_files))
    curves = BatchSizeCurves(folder, points, runs, left_out, last_run.document)
    write_text(folder / "run.json", to_json({"command": "batch-sizes", **conditions, "argv": shareable(settings.argv)}))
    write_text(folder / "summary.json", to_json(curves.summary))
    return curves


def _points(conclusions: Sequence[Conclusion], size: int) -> list[BatchSizePoint]:
    """Return the points of all methods that have both figures; the baseline is the same in every run."""
    summaries = [conclusion.summary for conclusion in conclusions]
    baselines = [(BASELINE, summary.baseline.overall) for summary in summaries if summary.baseline]
    metrics = [*baselines[:1], *((summary.method, summary.overall) for summary in summaries)]
    return [
        BatchSizePoint(method, size, overall.throughput, overall.tpot.mean)
        for method, overall in metrics
        if overall.throughput and overall.tpot.mean
    ]
