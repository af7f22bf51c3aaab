"""The work of one `skit bench`: a benchmark per dataset with one pair of models, and an estimate of
its time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from specbench_kit.core.errors import MethodError
from specbench_kit.core.progress import CountCallback, ProgressCallback, untold
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.decoding.processes.stages import KEPT
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.metrics.result import MANY
from specbench_kit.studies.bench.benches import closed_on_error, open_bench
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import Progress, ends_alone
from specbench_kit.studies.bench.opening import count_turns, open_runs
from specbench_kit.studies.bench.run import Benchmark, ProcessTurn
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.conversations import Conversation

NOTHING_KEPT = "interrupted before the first answer: nothing is kept"
SHOWN_AS_SECONDS_S = 120
"""Estimates from which on minutes are shown."""


class Campaign:
    """The benchmarks of several datasets with one pair of models.

    Every run directory exists before anything is decoded, so that `--resume` finds all runs of one
    command. Close the campaign after `write_results`, since a server is asked about outputs that
    differ; `with Campaign(...)` does. `turn` says which of several processes this is.
    """

    def __init__(
        self,
        settings: BenchSettings,
        datasets: Sequence[LoadedDataset],
        report: ProgressCallback,
        turn: ProcessTurn | None = None,
    ) -> None:
        self.bench = open_bench(settings, datasets, report)
        join = turn is not None and turn.number > 0
        with closed_on_error(self.bench.close):
            runs, notes = open_runs(settings, self.bench, self.bench.prompts.datasets, join=join)
        self.notes = [*self.bench.notes, *notes]
        pairs = zip(self.bench.prompts.datasets, runs, strict=True)
        self.benchmarks = [
            Benchmark(settings, dataset, self.bench, opened, turn) for dataset, opened in pairs
        ]

    @property
    def outlook(self) -> str:
        """Return a line that estimates the duration of a benchmark of many methods; empty for few
        methods.
        """
        missing = sum(benchmark.planned - benchmark.done for benchmark in self.benchmarks)
        if len(self.bench.prepared.lanes) <= MANY or not missing:
            return ""
        planned = sum(benchmark.planned for benchmark in self.benchmarks)
        whole_s = estimate_seconds(self.bench, self.bench.prompts.datasets)
        methods = len(self.bench.prepared.lanes)
        begins = f"{methods} methods, {missing} answers to decode. Estimated time: up to"
        minutes = self.bench.settings.minutes
        first_s = whole_s * methods / planned
        if minutes is not None and first_s > 60 * minutes:
            return (
                f"{begins} {_span(first_s)}, since every method answers its first prompt before "
                f"--minutes {minutes:g} ends it: name fewer methods, or lower --max-new-tokens"
            )
        return f"{begins} {_span(whole_s * missing / planned)}"

    def end_interrupted(self) -> str:
        """Return what an interrupt keeps; before the first answer that is nothing, and all folders
        are removed.
        """
        runs = [run for benchmark in self.benchmarks for run in benchmark.runs.values()]
        if not all(run.is_empty for run in runs):
            return f"interrupted; {KEPT}"
        for benchmark in self.benchmarks:
            benchmark.discard()
        self.benchmarks = []
        return NOTHING_KEPT

    def run(self, report: Callable[[Progress], None]) -> None:
        """Decode what is missing until --minutes are over, one dataset after the other; progress
        counts over all.

        Raise MethodError for policies that failed, after all that others do.
        """
        limit = TimeLimit(self.bench.settings.minutes)
        planned = sum(benchmark.planned for benchmark in self.benchmarks)
        before = 0

        def report_total(progress: Progress) -> None:
            report(replace(progress, done=before + progress.done, planned=planned))

        for benchmark in self.benchmarks:
            benchmark.run(report_total, limit)
            before += benchmark.planned
        self.bench.require_whole()

    def write_results(self, progress: CountCallback = untold) -> list[Conclusion]:
        """Write the summaries and reports of every run, whole or partial; progress counts runs over
        all datasets.
        """
        planned = sum(len(benchmark.runs) for benchmark in self.benchmarks)
        conclusions: list[Conclusion] = []

        def report_total(done: int, _: int) -> None:
            progress(len(conclusions) + done, planned)

        for benchmark in self.benchmarks:
            conclusions += benchmark.write_results(report_total)
        return conclusions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the processes of a pipeline and the connection to a server."""
        self.bench.close()


def _span(seconds: float) -> str:
    if seconds < SHOWN_AS_SECONDS_S:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes"


TRIAL_TOKENS = 16


def estimate_seconds(bench: Workbench, datasets: list[LoadedDataset]) -> float:
    """Return an upper estimate of the seconds on this machine: every answer is as long as allowed,
    none is batched.
    """
    prompts = [prompt for dataset in datasets for prompt in dataset.prompts]
    shortest = min(prompts, key=lambda prompt: len(prompt.turns[0]))
    request = Conversation(
        shortest, bench.pair.tokenizer, TRIAL_TOKENS, bench.prompts.grammars.of(shortest)
    ).next_request()
    assert request is not None
    per_request_s = per_token_s = 0.0
    for spec, method in bench.prepared.lanes.items():
        if method.needs_reference:
            continue
        try:
            with ends_alone("the estimate of the duration"):
                loop = bench.loop(method)
                started = read_processor_time()
                loop.submit(request)
                # The first step holds the prompt, which a request has once and not once per
                # TRIAL_TOKENS.
                records = list(loop.step())
                first = read_processor_time()
                while not loop.idle:
                    records += loop.step()
        except MethodError as error:
            bench.broken[spec] = error
            continue
        first_s = first.since(started).wall_s
        rest_s = read_processor_time().since(first).wall_s
        per_request_s += first_s
        per_token_s += rest_s / max(1, sum(len(record.output_ids) for record in records) - 1)
    requests = sum(count_turns(dataset) for dataset in datasets) * bench.settings.passes
    return (per_request_s + per_token_s * bench.settings.max_new_tokens) * requests
