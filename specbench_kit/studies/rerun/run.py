"""Run a run again, and say what differs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.nested import flat
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.opening import open_runs
from specbench_kit.studies.bench.outputs.conclusion import Conclusion
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.rerun.options import RerunOptions
from specbench_kit.studies.rerun.restore import require_same_models, restore_dataset, restore_settings

Fields = Mapping[str, Any]
Records = Sequence[RequestRecord]

ENVIRONMENT = ("git_commit", "git_dirty", "platform", "versions", "hardware", "options", "uses")
COUNTS = ("drafted", "submitted", "accepted", "committed")


@dataclass(frozen=True, slots=True)
class EqualCount:
    """How many of how many."""

    equal: int
    compared: int


@dataclass(frozen=True, slots=True)
class Differences:
    """Of a second run from the first. `environment` holds both values of what changed, by name.

    Over requests that finished in both: equal outputs, equal counts in every round, and times as a multiple of the
    first run's, of the method and of its baseline. `missing` requests finished in one run only.
    """

    environment: dict[str, tuple[Any, Any]]
    outputs: EqualCount
    rounds: EqualCount
    missing: int
    time_ratio: float | None
    baseline_time_ratio: float | None
    speedups: tuple[float | None, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """One line each."""
        changed = [f"{name}: {before} before, {now} now" for name, (before, now) in self.environment.items()]
        speedups = ", ".join("none" if one is None else f"{one:.2f}x" for one in self.speedups)
        return [
            *(changed or ["environment: the same"]),
            f"outputs: {self.outputs.equal} of {self.outputs.compared} equal",
            f"rounds: {self.rounds.equal} of {self.rounds.compared} requests with the same drafts and acceptances",
            *([f"requests that finished in one of the two runs only: {self.missing}"] if self.missing else []),
            f"time: {_times(self.time_ratio)} that of before, of the baseline {_times(self.baseline_time_ratio)}",
            f"speedup, before and now: {speedups}",
        ]


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The new run, and how it differs."""

    conclusion: Conclusion
    differences: Differences


def rerun(
    path: Path, places: RerunOptions, out: Path, argv: tuple[str, ...], report: Callable[[Progress], None]
) -> RerunResult:
    """Run the run in `path` again, into a new one below `out`."""
    first = RunDirectory.find(path)
    settings = restore_settings(first.run, places, out, argv)
    conclusion = (
        _replay(first, settings, places, report) if "trace" in first.run else _run(first, settings, places, report)
    )
    second = conclusion.directory
    differences = compare(first, second, conclusion.summary)
    second.amend(rerun_of={"run": first.path.resolve().name, "started_at": first.run["started_at"]})
    second.write_json("rerun.json", differences.to_dict())
    return RerunResult(conclusion, differences)


def _run(
    first: RunDirectory, settings: BenchSettings, places: RerunOptions, report: Callable[[Progress], None]
) -> Conclusion:
    dataset = restore_dataset(first.run, places.data_dir)
    bench = Workbench(settings, [dataset])
    try:
        require_same_models(first.run, bench.models)
        (runs,), _ = open_runs(settings, bench, [dataset])
        benchmark = Benchmark(settings, dataset, bench, runs)
        benchmark.run(report)
    finally:
        bench.close()
    return benchmark.conclude()[0]


def _replay(
    first: RunDirectory, settings: BenchSettings, places: RerunOptions, report: Callable[[Progress], None]
) -> Conclusion:
    trace = first.run["trace"]
    path = places.replay or Path(trace["file"])
    if not path.is_file():
        raise SkitError(f"the run replayed the trace {trace['file']}: say where it is with --replay")
    if provenance.hash_file(path) != trace["sha256"]:
        raise SkitError(f"{path} is not the trace that the run replayed: name the right one with --replay")
    conclusions, _ = bench_replay(settings, path, report)
    return conclusions[0]


def compare(first: RunDirectory, second: RunDirectory, summary: Fields) -> Differences:
    """What differs between two runs of the same work."""
    pairs, missing = _pair(first.records(), second.records())
    baselines, _ = _pair(first.baseline_records(), second.baseline_records())
    return Differences(
        environment=_environment(first.run, second.run),
        outputs=_count(one.output_ids == other.output_ids for one, other in pairs),
        rounds=_count(_rounds(one) == _rounds(other) for one, other in pairs),
        missing=missing,
        time_ratio=_time_ratio(pairs),
        baseline_time_ratio=_time_ratio(baselines),
        speedups=(_speedup(first.summary()), _speedup(summary)),
    )


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f} times"


def _pair(first: Records, second: Records) -> tuple[list[tuple[RequestRecord, RequestRecord]], int]:
    """Requests that finished in both, and how many finished in one only."""
    sides = [{one.key: one for one in records if one.finish_reason != "error"} for records in (first, second)]
    shared = sides[0].keys() & sides[1].keys()
    pairs = [(one, sides[1][key]) for key, one in sides[0].items() if key in shared]
    return pairs, len(sides[0].keys() ^ sides[1].keys())


def _environment(first: Fields, second: Fields) -> dict[str, tuple[Any, Any]]:
    """What is not the same in two run.json, by dotted name; what only one of them has is null in the other."""
    sides = [flat({name: run.get(name) for name in ENVIRONMENT}) for run in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    found = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
    return {name: values for name, values in found.items() if values[0] != values[1]}


def _rounds(record: RequestRecord) -> list[list[int]]:
    return [[getattr(one, name) for name in COUNTS] for one in record.rounds]


def _count(agreements: Iterable[bool]) -> EqualCount:
    found = list(agreements)
    return EqualCount(sum(found), len(found))


def _time_ratio(pairs: Sequence[tuple[RequestRecord, RequestRecord]]) -> float | None:
    before_s, after_s = (
        (sum(one.e2e_s or 0.0 for one in side) for side in zip(*pairs, strict=True)) if pairs else (0, 0)
    )
    return after_s / before_s if before_s else None


def _speedup(summary: Fields) -> float | None:
    found: float | None = summary.get("overall", {}).get("speedup")
    return found
