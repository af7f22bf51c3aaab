"""Run a finished benchmark again and report what differs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import require
from specbench_kit.core.nested import flat
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.opening import open_runs
from specbench_kit.studies.bench.outputs.conclusion import Conclusion
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.rerun.options import RerunOptions
from specbench_kit.studies.rerun.restore import (
    find_trace,
    is_replay,
    require_same_models,
    restore_dataset,
    restore_settings,
)

Document = Mapping[str, Any]
"""The content of a `run.json` or a `summary.json`."""
Records = Sequence[RequestRecord]
RecordPairs = Sequence[tuple[RequestRecord, RequestRecord]]
"""The records of the same requests in the first and the second run."""

ENVIRONMENT = ("git_commit", "git_dirty", "platform", "versions", "hardware", "options", "uses")
"""Keys of `run.json` that describe the conditions of a run."""
COUNTS = ("drafted", "submitted", "accepted", "committed")


@dataclass(frozen=True, slots=True)
class EqualCount:
    """The number of equal items, and of all that were compared."""

    equal: int
    compared: int


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of a second run from the first.

    `environment` maps the name of each changed condition to its two values. All other fields cover the requests that
    finished in both runs: equal outputs, equal token counts in every round, and the second run's time as a multiple of
    the first run's, for the method and for its baseline. `missing` requests finished in one run only.
    """

    environment: dict[str, tuple[object, object]]
    outputs: EqualCount
    rounds: EqualCount
    missing: int
    time_ratio: float | None
    baseline_time_ratio: float | None
    speedups: tuple[float | None, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the differences as lines of text."""
        changed = [f"{name}: {first} before, {second} now" for name, (first, second) in self.environment.items()]
        speedups = ", ".join("none" if speedup is None else f"{speedup:.2f}x" for speedup in self.speedups)
        return [
            *(changed or ["environment: the same"]),
            f"outputs: {self.outputs.equal} of {self.outputs.compared} equal",
            f"rounds: {self.rounds.equal} of {self.rounds.compared} requests with the same drafts and acceptances",
            *([f"requests that finished in one of the two runs only: {self.missing}"] if self.missing else []),
            f"time: {_times(self.time_ratio)} the first run's; baseline: {_times(self.baseline_time_ratio)}",
            f"speedup, before and now: {speedups}",
        ]


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The new run and its differences from the first."""

    conclusion: Conclusion
    differences: Differences


def rerun(
    path: Path, options: RerunOptions, out: Path, argv: tuple[str, ...], report: Callable[[Progress], None]
) -> RerunResult:
    """Run the run in `path` again, into a new run directory below `out`."""
    first = RunDirectory.find(path)
    _require_effect(first.run, options)
    settings = restore_settings(first.run, options, out, argv)
    if is_replay(first.run):
        conclusions, _ = bench_replay(settings, find_trace(first.run, options.replay), report)
        conclusion = conclusions[0]
    else:
        conclusion = _decode(first, settings, options, report)
    second = conclusion.directory
    differences = compare(first, second, conclusion.summary)
    second.amend(rerun_of={"run": first.path.resolve().name, "started_at": first.run["started_at"]})
    second.write_json("rerun.json", differences.to_dict())
    return RerunResult(conclusion, differences)


def _require_effect(run: Document, options: RerunOptions) -> None:
    """Raise SkitError for options about inputs that the run does not have."""
    of_models = ("target", "draft", "data_dir", "device")
    names, reason = (
        (of_models, "the run replayed a trace, without models and prompts")
        if is_replay(run)
        else (("replay",), "the run decoded with models and replayed no trace")
    )
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        require(getattr(options, name) is None, f"{flag} has no effect: {reason}; leave it out")


def _decode(
    first: RunDirectory, settings: BenchSettings, options: RerunOptions, report: Callable[[Progress], None]
) -> Conclusion:
    dataset = restore_dataset(first.run, options.data_dir)
    bench = Workbench(settings, [dataset])
    try:
        require_same_models(first.run, bench.models)
        (runs,), _ = open_runs(settings, bench, [dataset])
        benchmark = Benchmark(settings, dataset, bench, runs)
        benchmark.run(report)
        return benchmark.conclude()[0]
    finally:
        bench.close()


def compare(first: RunDirectory, second: RunDirectory, summary: Document) -> Differences:
    """Return the differences between two runs of the same work; `summary` belongs to the second."""
    pairs, missing = _pair(first.records(), second.records())
    baselines, _ = _pair(first.baseline_records(), second.baseline_records())
    conditions = [flat({name: run.run.get(name) for name in ENVIRONMENT}) for run in (first, second)]
    values = {name: (conditions[0].get(name), conditions[1].get(name)) for name in conditions[0] | conditions[1]}
    return Differences(
        environment={name: pair for name, pair in values.items() if pair[0] != pair[1]},
        outputs=_count(before.output_ids == after.output_ids for before, after in pairs),
        rounds=_count(_counts(before) == _counts(after) for before, after in pairs),
        missing=missing,
        time_ratio=_time_ratio(pairs),
        baseline_time_ratio=_time_ratio(baselines),
        speedups=(_speedup(first.summary()), _speedup(summary)),
    )


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f} times"


def _pair(first: Records, second: Records) -> tuple[RecordPairs, int]:
    """Return the records of requests that finished in both runs, and the number that finished in one only."""
    before, after = (
        {record.key: record for record in records if record.finish_reason != "error"} for records in (first, second)
    )
    return [(record, after[key]) for key, record in before.items() if key in after], len(before.keys() ^ after.keys())


def _counts(record: RequestRecord) -> list[list[int]]:
    return [[getattr(round, name) for name in COUNTS] for round in record.rounds]


def _count(agreements: Iterable[bool]) -> EqualCount:
    compared = list(agreements)
    return EqualCount(sum(compared), len(compared))


def _time_ratio(pairs: RecordPairs) -> float | None:
    before_s = sum(before.e2e_s or 0.0 for before, _ in pairs)
    return sum(after.e2e_s or 0.0 for _, after in pairs) / before_s if before_s else None


def _speedup(summary: Document) -> float | None:
    speedup: float | None = summary.get("overall", {}).get("speedup")
    return speedup
