"""Run a finished benchmark again and report what differs."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import cast

from msgspec import UNSET, Struct, UnsetType

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues, restored_values
from specbench_kit.core.typed_json import Written, convert, flat
from specbench_kit.datasets.base import LoadedDataset, Source
from specbench_kit.datasets.loading import SAMPLES, leave_out, load
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.description import restore
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.models.catalogue import BUNDLED, locate
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.draft_library import AUTO, find_draft
from specbench_kit.models.named import NAMED_PAIRS, Role
from specbench_kit.reports.sections import machine
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunDocument, TraceReference
from specbench_kit.runs.folder import Defining
from specbench_kit.studies.bench.benches import open_bench
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.opening import open_runs
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.rerun.options import RerunOptions
from specbench_kit.traces.library import trace_file

Records = Sequence[RequestRecord]
RecordPairs = Sequence[tuple[RequestRecord, RequestRecord]]
"""The records of the same requests in the first and the second run."""

ENVIRONMENT = (
    "git_commit",
    "git_dirty",
    "platform",
    "versions",
    "hardware",
    "options",
    "uses",
    "method_source",
)
"""Keys of `run.json` that describe the conditions of a run."""
COMMIT = re.compile("[0-9a-f]{40}")
"""A commit of the hub."""
COUNTS = attrgetter("drafted", "submitted", "accepted", "committed", "forced")


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
    warnings: Sequence[str] = ()
    """Why the times of one of the runs are not valid, as its page says."""
    is_replay: bool = False
    """Whether a trace was replayed, so that the same policy makes the same rounds on every
    machine.
    """

    def to_dict(self) -> Written:
        """Return all fields, ready for JSON."""
        return asdict(self)

    @property
    def is_repeated(self) -> bool:
        """Whether the second run is one of the same policy, as far as its options and its replayed
        rounds tell.
        """
        return not self._is_another_policy and (
            not self.is_replay or self.rounds.equal == self.rounds.compared
        )

    @property
    def _is_another_policy(self) -> bool:
        return bool(self._changed_options) or "method_source" in self.environment

    @property
    def _changed_options(self) -> list[str]:
        return [name.partition(".")[2] for name in self.environment if name.startswith("options.")]

    def verdict(self) -> str:
        """Return in a sentence whether the run came out again."""
        counts = f"{self.outputs.equal} of {self.outputs.compared} outputs are equal, and {self.rounds.equal} of "
        counts += f"{self.rounds.compared} requests have the same drafts and acceptances"
        if self._is_another_policy:
            options = ", ".join(self._changed_options)
            shown = f", for its options differ ({options})" if options else ""
            return (
                f"NOT THE SAME POLICY: its code has changed since the first run{shown}; {counts}."
            )
        if not self.is_repeated:
            return f"NOT REPEATED: a replay makes the same rounds unless code, predictor or profiles changed; {counts}."
        is_equal = (
            all(count.equal == count.compared for count in (self.outputs, self.rounds))
            and not self.missing
        )
        return f"{'Repeated' if is_equal else 'Not all of it came out again'}: {counts}."

    def lines(self) -> list[str]:
        """Return the differences as lines of text, behind those that say which times are not
        valid.
        """
        changed = [
            f"{name}: {first} before, {second} now"
            for name, (first, second) in self.environment.items()
        ]
        speedups = ", ".join(
            "none" if speedup is None else f"{speedup:.2f}x" for speedup in self.speedups
        )
        return [
            *self.warnings,
            self.verdict(),
            *(changed or ["environment: the same"]),
            f"outputs: {self.outputs.equal} of {self.outputs.compared} equal",
            f"rounds: {self.rounds.equal} of {self.rounds.compared} requests with the same drafts and acceptances",
            *(
                [f"requests that finished in one of the two runs only: {self.missing}"]
                if self.missing
                else []
            ),
            f"time: {_times(self.time_ratio)} the first run's; baseline: {_times(self.baseline_time_ratio)}",
            f"speedup on a typical prompt, before and now: {speedups}",
        ]


@dataclass(frozen=True, slots=True)
class RerunResult:
    """The new run and its differences from the first."""

    conclusion: Conclusion
    differences: Differences


def rerun(
    path: Path,
    options: RerunOptions,
    out: Path,
    argv: tuple[str, ...],
    report: Callable[[Progress], None],
) -> RerunResult:
    """Run the run in `path` again, into a new run directory below `out`."""
    first = RunDirectory.find(path)
    run = first.document
    _require_effect(run, options)
    settings = restore_settings(run, first.run.get("config", {}), options, out, argv)
    if is_replay(run):
        replayed = bench_replay(settings, find_trace(run, options.replay), report)
        conclusion = replayed.conclusions[0]
    else:
        conclusion = _decode(first, settings, options, report)
    second = conclusion.directory
    differences = compare(first, second, conclusion.summary)
    second.amend(rerun_of={"run": first.path.resolve().name, "started_at": run.started_at})
    second.write_json("rerun.json", differences.to_dict())
    return RerunResult(conclusion, differences)


def _require_effect(run: RunDocument, options: RerunOptions) -> None:
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
    first: RunDirectory,
    settings: BenchSettings,
    options: RerunOptions,
    report: Callable[[Progress], None],
) -> Conclusion:
    dataset = restore_dataset(first.document, options.data_dir)
    bench = open_bench(settings, [dataset])
    try:
        require_same_models(first.document, bench.models)
        (runs,), _ = open_runs(settings, bench, [dataset])
        benchmark = Benchmark(settings, dataset, bench, runs)
        benchmark.run(report)
        bench.require_whole()
        return benchmark.write_results()[0]
    finally:
        bench.close()


def compare(first: RunDirectory, second: RunDirectory, summary: RunSummary) -> Differences:
    """Return the differences between two runs of the same work; `summary` belongs to the second."""
    pairs, missing = _pair(first.records(), second.records())
    baselines, _ = _pair(first.baseline_records(), second.baseline_records())
    original, repeated = _environment(first), _environment(second)
    values = {name: (original.get(name), repeated.get(name)) for name in (*original, *repeated)}
    return Differences(
        environment={name: pair for name, pair in values.items() if pair[0] != pair[1]},
        outputs=_count(before.output_ids == after.output_ids for before, after in pairs),
        rounds=_count(_counts(before) == _counts(after) for before, after in pairs),
        missing=missing,
        time_ratio=_time_ratio(pairs),
        baseline_time_ratio=_time_ratio(baselines),
        speedups=(_speedup(first), summary.overall.typical_speedup),
        warnings=[
            f"{name}: {line}"
            for name, run in (("before", first), ("now", second))
            for line in machine.warnings(run.document)
        ],
        is_replay=is_replay(first.document),
    )


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f} times"


def _pair(first: Records, second: Records) -> tuple[RecordPairs, int]:
    """Return the records of requests that finished in both runs, and the number that finished in
    one only.
    """
    before = {record.key: record for record in first if record.finish_reason != "error"}
    after = {record.key: record for record in second if record.finish_reason != "error"}
    return [(record, after[key]) for key, record in before.items() if key in after], len(
        before.keys() ^ after.keys()
    )


def _environment(run: RunDirectory) -> Defining:
    """Return what a run states of its environment, nested names joined by dots."""
    return flat({name: run.run.get(name) for name in ENVIRONMENT})


def _counts(record: RequestRecord) -> list[tuple[int, ...]]:
    return list(map(COUNTS, record.rounds))


def _count(agreements: Iterable[bool]) -> EqualCount:
    compared = list(agreements)
    return EqualCount(sum(compared), len(compared))


def _time_ratio(pairs: RecordPairs) -> float | None:
    before_s = sum(before.e2e_s or 0.0 for before, _ in pairs)
    return sum(after.e2e_s or 0.0 for _, after in pairs) / before_s if before_s else None


class _Speedups(Struct, frozen=True):
    typical_speedup: float | UnsetType | None = UNSET
    speedup: float | None = None


class _StoredSummary(Struct):
    overall: _Speedups = _Speedups()


def _speedup(run: RunDirectory) -> float | None:
    overall = convert(_StoredSummary, run.summary()).overall
    # Summaries of earlier versions know no typical prompt.
    return overall.speedup if overall.typical_speedup is UNSET else overall.typical_speedup


def restore_settings(
    run: RunDocument,
    recorded: OptionValues,
    options: RerunOptions,
    out: Path,
    argv: tuple[str, ...],
) -> BenchSettings:
    """Return the settings of the run, whose `run.json` has the `recorded` options; raise SkitError
    if it was not decoded or replayed by this program alone.
    """
    if not (recorded and run.method and (run.models or run.trace)):
        raise SkitError(
            "run.json names no method, models and settings: only runs of skit bench can be run again"
        )
    if run.imported is not None:
        raise SkitError(
            f"the run was imported from {run.imported.tool}, which would have to run it again"
        )
    if run.server is not None:
        raise SkitError(
            "the run was verified by a server, which is not known here: use skit bench --server again"
        )
    if run.config.processes > 1:
        raise SkitError(
            "the run was decoded in several processes, and a rerun is one: give skit bench --processes again"
        )
    config = restored_values(BenchSettings, recorded)
    if draft_device := recorded.get("draft_device"):
        config["device"] = f"{config['device']}+{draft_device}"
    if options.device:
        config["device"] = options.device
    if not is_replay(run):
        config["target"] = options.target or _find_model(run, "target")
        if "draft" in run.models:
            config["draft"] = options.draft or _find_draft(run, config["target"])
    return BenchSettings(
        (run.method,),
        **config,
        deployment=restore(run.deployment) if run.deployment else None,
        out=out,
        argv=argv,
    )


def is_replay(run: RunDocument) -> bool:
    """Return True if the run replayed a trace, so that it loaded no models and no prompts."""
    return run.trace is not None


def find_trace(run: RunDocument, replay: Path | None) -> Path:
    """Return the path of the trace that the run replayed, checked by its hash; `replay` is where
    the user has it.
    """
    described = run.trace or TraceReference()
    file = Path(str(described.file))
    # A trace that the kit brings is named without its suffix.
    named = [replay] if replay else [*map(Path, _arguments(run, "--replay")), file, Path(file.stem)]
    for name in named:
        with suppress(SkitError):  # neither a file nor a bundled trace
            path = trace_file(name)
            if path.is_file() and provenance.hash_file(path) == described.sha256:
                return path
    if replay is not None and replay.is_file():
        raise SkitError(
            f"{replay} is not the trace that the run replayed: name the right one with --replay"
        )
    raise SkitError(f"the run replayed the trace {described.file}: say where it is with --replay")


def restore_dataset(run: RunDocument, data_dir: Path | None) -> LoadedDataset:
    """Load the run's prompts; raise SkitError if the prompts of that name have changed."""
    described = run.dataset
    limit = run.config.limit
    seed = run.config.seed or 0
    loaded = load(
        _find_prompts(run, data_dir), data_dir=data_dir, allow_sample=False, limit=limit, seed=seed
    )
    dataset = leave_out(loaded, frozenset(described.left_out or ()), limit, seed)
    digest = str(described.digest)
    if dataset.digest != digest:
        raise SkitError(
            f"the prompts of {described.name} ({dataset.location}) are not those of the run (SHA-256 "
            f"{dataset.digest[:12]}, not {digest[:12]}): name the folder that holds them with --data-dir"
        )
    return replace(
        dataset,
        name=str(described.name),
        source=cast(Source, described.source),
        location=str(described.location),
    )


def require_same_models(run: RunDocument, models: Mapping[str, ModelDescription]) -> None:
    """Raise SkitError unless the models have the run's content, or its commit if they come from the
    hub.
    """
    # What the run records besides was loaded for other methods that ran with it, such as another
    # one's head.
    for role in run.models.keys() & models.keys():
        loaded = str(models[role].hash)
        expected = _hash_of(run, role)
        if loaded != expected:
            raise SkitError(
                f"the {role} {models[role].name} is not that of the run (hash {loaded[:12]}, not {expected[:12]}): "
                f"name the right one with --{role}"
            )


def _hash_of(run: RunDocument, role: str) -> str:
    model = run.models.get(role)
    return str(model.hash) if model else ""


def _find_model(run: RunDocument, role: Role) -> str:
    """Return the name to load a model by: the bundled one, a folder with the same content, a named
    pair or a hub id.
    """
    model = run.models.get(role) or ModelDescription()
    name = str(model.name)
    if name == f"{BUNDLED}/{role}":
        return BUNDLED
    for path in map(Path, (*_arguments(run, f"--{role}"), name)):
        with suppress(SkitError):  # a folder without weights
            folder = locate(str(path), role).folder if path.exists() else path
            if folder.is_dir() and provenance.hash_model(folder) == model.hash:
                return str(path)
    for pair in NAMED_PAIRS.values():
        if pair.model(role).name == name:
            return pair.name
    if "/" in name:
        return _with_commit(name, role, str(model.hash))
    raise SkitError(
        f"the {role} '{name}' was in a folder that the run does not name: say where with --{role}"
    )


def _with_commit(name: str, role: Role, recorded: str) -> str:
    """Return a hub id, with the run's commit where its branch has moved on since."""
    commit = recorded.partition("-")[0]  # the number format or the exit layer follows it
    with suppress(SkitError):
        if provenance.hash_model(locate(name, role).folder) == commit:
            return name
    return f"{name.partition('@')[0]}@{commit}" if COMMIT.fullmatch(commit) else name


def _find_draft(run: RunDocument, target: str) -> str:
    """Return the name to load the draft model by: `auto` if it is the target's own, else that of
    `_find_model`.
    """
    with suppress(SkitError):
        own = find_draft(AUTO, locate(target, "target"))
        if provenance.hash_model(own.folder) == _hash_of(run, "draft"):
            return AUTO
    return _find_model(run, "draft")


def _find_prompts(run: RunDocument, data_dir: Path | None) -> str:
    """Return what to load: the name of the dataset, its bundled sample, or a file of the same
    name.
    """
    dataset = run.dataset
    location = str(dataset.location)
    if dataset.source == "sample":
        return str(SAMPLES / f"{location}.jsonl")
    if dataset.source != "file":
        return str(dataset.name)
    files = [data_dir / location] if data_dir else []
    files += [*map(Path, _arguments(run, "--dataset")), Path(location)]
    for file in files:
        if file.name == location and file.is_file():
            return str(file)
    raise SkitError(
        f"the prompts were in a file {location} in a folder that the run does not name: name the folder "
        "with --data-dir"
    )


def _arguments(run: RunDocument, option: str) -> Sequence[str]:
    """Return the values of an option on the run's command line, as `--option value` or
    `--option=value`.
    """
    argv = run.argv or []
    values = [value for name, value in pairwise(argv) if name == option]
    return [
        *values,
        *(argument.partition("=")[2] for argument in argv if argument.startswith(f"{option}=")),
    ]
