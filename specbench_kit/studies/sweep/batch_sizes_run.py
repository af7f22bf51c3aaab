"""The benchmarks behind curves over batch sizes: one at each size, each into run directories of its
own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.full_batch import full_batch
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.study import finish
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.provenance import shareable
from specbench_kit.serving.memory import UNLIMITED_KV, KvCapacity
from specbench_kit.studies.bench.campaign import Campaign
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.sweep.batch_sizes import (
    BATCH_SIZES,
    FILLINGS,
    WHY_NEVER_FULL,
    BatchSizePoint,
    BatchSizeStudy,
    BatchSizeSummary,
    NeverFull,
    fixed_length,
)
from specbench_kit.studies.sweep.lengths import fastest_lengths


def run_curves(
    settings: BenchSettings,
    sizes: Sequence[int],
    source: LoadedDataset | Path,
    report: Callable[[Progress], None],
    contexts: Sequence[int] = (),
    room: KvCapacity = UNLIMITED_KV,
) -> BatchSizeStudy:
    """Benchmark every batch size on a dataset or a trace, each into its own run directories, and
    draw the curves. At each of the `contexts` for which there is `room`, the deployment says which
    length is fastest.
    """
    committed: dict[str, float] = {}
    points: list[BatchSizePoint] = []
    never_full: list[NeverFull] = []
    runs: list[str] = []
    left_out: dict[str, str] = {}
    last_run: RunDirectory | None = None
    for size in sizes:
        sized = replace(settings, batch_size=size, fewest_requests=FILLINGS * size)
        if isinstance(source, Path):
            conclusions, missing, _ = bench_replay(sized, source, report)
        else:
            with Campaign(sized, [source], lambda *_: None) as campaign:
                campaign.run(report)
                conclusions = campaign.write_results()
                missing = campaign.bench.prepared.left_out
        left_out |= missing
        committed |= {
            conclusion.summary.method: conclusion.summary.overall.acceptance_length or 1.0
            for conclusion in conclusions
            if fixed_length(conclusion.summary.method)
        }
        for method, point in _points(conclusions, size).items():
            if point is None:
                never_full.append(NeverFull(method, size))
            else:
                points.append(point)
        runs += [conclusion.directory.path.name for conclusion in conclusions]
        last_run = conclusions[0].directory
    # The runs differ in batch size only, so that any of them describes the conditions of all.
    assert last_run is not None
    if not points:
        raise SkitError(
            f"no batch was ever full, in {settings.out / runs[0]} and the runs after it. {WHY_NEVER_FULL}"
        )
    run = {name: value for name, value in last_run.run.items() if name not in OF_ONE_RUN}
    run["config"] = {
        name: value for name, value in last_run.run["config"].items() if "batch_size" not in name
    }
    dataset = str(last_run.document.dataset.name)
    defining = {"methods": list(settings.methods), "sizes": list(sizes), "runs": runs}
    folder = unused_folder(settings.out, "batch-sizes", dataset, defining)
    described = {"command": BATCH_SIZES.command, **run, "argv": shareable(settings.argv)}
    by_context = (
        list(fastest_lengths(settings.deployment, committed, sizes, contexts, room))
        if settings.deployment and committed
        else []
    )
    summary = BatchSizeSummary(points, never_full, runs, left_out, by_context)
    return finish(BATCH_SIZES, folder, described, summary)


OF_ONE_RUN = (
    "schema_version",
    "method",
    "options",
    "method_source",
    "proposal",
    "uses",
    "prompts",
    "machine",
)
"""What differs between the runs of the batch sizes."""


def _points(conclusions: Sequence[Conclusion], size: int) -> dict[str, BatchSizePoint | None]:
    """Return the points of all methods, None where the batch was never full; the baseline is the
    same in every run.
    """
    runs = [(conclusion.summary.method, conclusion.directory) for conclusion in conclusions]
    records = {method: run.records() for method, run in runs}
    with_baseline = next((run for method, run in runs if method != BASELINE), None)
    if with_baseline is not None and (baseline := with_baseline.baseline_records()):
        records = {BASELINE: baseline} | records
    return {method: _point(method, own, size) for method, own in records.items()}


def _point(method: str, records: Sequence[RequestRecord], size: int) -> BatchSizePoint | None:
    full = full_batch(records, size)
    if full is None or not full.throughput or not full.tpot_s:
        return None
    return BatchSizePoint(method, size, full.throughput, full.tpot_s, full.share, len(records))
