"""The work of one `skit bench`: a benchmark per dataset, with one pair of models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.metrics.comparison import MANY
from specbench_kit.studies.bench.estimate import seconds
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.opening import open_runs
from specbench_kit.studies.bench.outputs.conclusion import Conclusion
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench


class Campaign:
    """Every run directory is there before anything is decoded, so that `--resume` finds all that belongs together."""

    def __init__(self, settings: BenchSettings, datasets: Sequence[LoadedDataset], report: ProgressCallback) -> None:
        self.bench = Workbench(settings, datasets, report)
        runs, self.notes = open_runs(settings, self.bench, self.bench.datasets)
        pairs = zip(self.bench.datasets, runs, strict=True)
        self.benchmarks = [Benchmark(settings, dataset, self.bench, opened) for dataset, opened in pairs]

    @property
    def outlook(self) -> str:
        """What many methods will come to, before they begin; nothing to say of a few."""
        missing = sum(one.planned - one.done for one in self.benchmarks)
        if len(self.bench.lanes) <= MANY or not missing:
            return ""
        minutes = seconds(self.bench, self.bench.datasets) * missing / sum(one.planned for one in self.benchmarks) / 60
        return f"{len(self.bench.lanes)} methods, {missing} answers to decode: {minutes:.0f} minutes at most, by a try"

    def run(self, report: Callable[[Progress], None]) -> None:
        """Decode everything that is missing, one dataset after the other."""
        try:
            for number, benchmark in enumerate(self.benchmarks):
                benchmark.run(partial(self._report, report, number))
        finally:
            self.bench.close()

    def conclude(self) -> list[Conclusion]:
        """Summaries and reports of every run, whole or partial."""
        return [conclusion for benchmark in self.benchmarks for conclusion in benchmark.conclude()]

    def _report(self, report: Callable[[Progress], None], number: int, progress: Progress) -> None:
        """Count over all datasets."""
        planned = [benchmark.planned for benchmark in self.benchmarks]
        report(replace(progress, done=sum(planned[:number]) + progress.done, planned=sum(planned)))
