"""Benchmarks on a trace instead of models: the same rounds, run directories and reports, with
modelled time.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from specbench_kit.core.errors import MethodError, SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.core.option import recorded_values
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.datasets.tool_calls import Tools
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import (
    DECIDED_ANEW,
    corners,
    describe_range,
    describe_time,
)
from specbench_kit.methods.base import Method
from specbench_kit.methods.predictor_based import predictor_notes
from specbench_kit.methods.selection import longest_draft
from specbench_kit.methods.spec import describe_method, parse_method
from specbench_kit.metrics.rounds import RequestGroup, RunRequests
from specbench_kit.metrics.tool_calls import ToolAnswers
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import BUNDLED
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunFields
from specbench_kit.studies.bench.choice import chosen, describe_choice, describe_tuning, usable
from specbench_kit.studies.bench.conclusion import Conclusion, RunExports, judge_and_write
from specbench_kit.studies.bench.judges import ReplayOutputJudge
from specbench_kit.studies.bench.lanes import Progress, ends_alone
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.traces.draft_limits import fit_spec, lowered_limits
from specbench_kit.traces.replay import (
    describe_replayed,
    prepare_for_replay,
    recording_deployment,
    replay,
)
from specbench_kit.traces.trace import TraceFile


class Replayed(NamedTuple):
    """What a replay leaves: the conclusions, and the reasons why methods were left out.

    `lost` are those of them that were named, and that the trace could not serve to its end or whose policy failed.
    """

    conclusions: list[Conclusion]
    left_out: dict[str, str]
    lost: dict[str, SkitError]


def with_recorded_target(settings: BenchSettings, trace: Path) -> BenchSettings:
    """Return the settings with the target whose answers a trace holds, for which tuned options may
    be bundled.
    """
    name = TraceFile(trace).model_name("target")
    is_pair = name.startswith(f"{BUNDLED}/")
    return replace(settings, target=name.removesuffix("/target") if is_pair else name)


@gc_paused()
def bench_replay(
    settings: BenchSettings,
    path: Path,
    report: Callable[[Progress], None],
    tell: Callable[[str], object] = lambda _: None,
) -> Replayed:
    """Replay every method on the trace `path`, one after the other, and write results as a live
    benchmark does.

    Methods of `all` that cannot be replayed are left out, and those whose drafts grow beyond what
    the trace holds; an error if these are all. `tell` receives notes before anything is replayed.
    """
    settings.require_together(replayed=True)
    if settings.tuned is not None:
        settings = with_recorded_target(settings, path)
    trace = TraceFile(path, settings.limit, settings.fewest_requests)
    trace.known(trace.recording.dataset.name, "dataset name")
    tool_answers = _tool_answers(trace)
    deployment = settings.deployment or recording_deployment(trace.header)
    # Methods are tried before there are runs, so that those of `all` that fail leave no run
    # directory.
    prepare = partial(
        prepare_for_replay,
        batch_size=settings.batch_size,
        longest_draft=longest_draft(chosen(settings)),
    )
    failed: dict[str, SkitError] = {}

    def prepare_alone(spec: str) -> Method:
        try:
            with ends_alone():
                return _prepare(spec, trace, deployment, prepare)
        except MethodError as error:
            failed[spec] = error
            raise

    prepared, left_out = usable(settings, prepare_alone)
    for note in predictor_notes(prepared.values()):
        tell(note)
    given: dict[str, str] = {}  # by the spec that is replayed
    for spec in prepared:
        if (first := given.setdefault(fit_spec(spec, trace.header), spec)) != spec:
            left_out[spec] = f"on this trace it is the same as {first}"
    methods = {spec: prepared[given_spec] for spec, given_spec in given.items()}
    shared = _describe(settings, trace, deployment)
    tuning = describe_tuning(settings)
    named = chosen(settings)
    runs = {
        spec: RunDirectory.create(
            settings.out,
            {
                **describe_method(spec, method),
                **describe_replayed(method, trace),
                **shared,
                **lowered_limits([given[spec]], trace.header),
                **tuning.get(given[spec], {}),
                **describe_choice(named[given[spec]]),
            },
        )
        for spec, method in methods.items()
    }
    progress = _ProgressCounter(report, len(trace) * (len(runs) + settings.baseline))
    replays = _Replays(settings, trace, deployment, prepare, progress)
    baseline: list[RequestRecord] = []
    records: list[RequestRecord] = []
    if settings.baseline and runs:
        keeper, *others = runs.values()
        for record in replays.records(BASELINE, parse_method(BASELINE)):
            baseline.append(record)
            keeper.append_baseline(record)
        # One round per token makes it the largest file of a run: it is encoded once for all
        # methods.
        for run in others if baseline else ():
            run.copy_baseline(keeper)
    finished: list[RunDirectory] = []
    lost: dict[str, SkitError] = {
        spec: error for spec, error in failed.items() if spec in settings.methods
    }
    for number, (spec, run) in enumerate(runs.items(), 1):
        records.clear()
        exports = RunExports(run, timeline=settings.timeline, token_view=settings.token_view)
        try:
            with ends_alone():
                for record in replays.records(spec, methods[spec], exports.timeline):
                    records.append(record)
                    run.append(record)
            if reason := replays.missing.get(spec):
                run.amend(range={**run.run["range"], "missing": reason})
        except (
            SkitError
        ) as error:  # its draft grew beyond what the trace holds, or its policy failed
            run.remove()
            if not finished and number == len(runs):
                raise
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
            if given[spec] in settings.methods:
                lost[given[spec]] = error
            continue
        exports.write()
        finished.append(run)

    if left_out:
        for run in finished:
            run.amend(left_out=left_out)

    plain = RequestGroup(baseline)

    def read(run: RunDirectory) -> RunRequests:
        # The records of several runs might not fit into memory together, so they are read from
        # their files.
        return RunRequests(RequestGroup(run.records() if len(runs) > 1 else records), plain)

    decode = trace.aids.decode if trace.aids is not None else None
    conclusions = judge_and_write(
        finished, ReplayOutputJudge(), decode, read, tool_answers=tool_answers
    )
    return Replayed(conclusions, left_out, lost)


def _tool_answers(trace: TraceFile) -> ToolAnswers | None:
    """Return what reads the answers in conversations with tools; None if the trace knows no
    tools.
    """
    if trace.aids is None or not trace.aids.tools:
        return None
    try:
        tools = {name: Tools(json.loads(text)) for name, text in trace.aids.tools.items()}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise SkitError(
            f"the trace {trace.path} is damaged: its tools cannot be read; record it again"
        ) from error
    return ToolAnswers(tools, trace.aids.decode)


def _prepare(
    spec: str, trace: TraceFile, deployment: Deployment, prepare: Callable[..., Method]
) -> Method:
    """Return the method ready for the replay, after a trial that fails if the trace cannot serve
    it.
    """
    method = prepare(parse_method(fit_spec(spec, trace.header)), trace, deployment)
    method.drafting.require_new_prompts(trace.passes)
    for _ in replay(method, trace.header, islice(trace, 1), deployment=deployment):
        pass
    return method


class _Replays:
    """Replays methods on a trace, and times their rounds at the ends of what derived times may be,
    too.

    A method that goes by times is replayed at each end, so that it decides anew; `missing` says of
    which methods a trace does not hold what they would draft there.
    """

    def __init__(
        self,
        settings: BenchSettings,
        trace: TraceFile,
        deployment: Deployment,
        prepare: Callable[..., Method],
        progress: "_ProgressCounter",
    ) -> None:
        self._ends = [end for _, end in corners(deployment)]
        self.missing: dict[str, str] = {}
        self._settings = settings
        self._trace = trace
        self._deployment = deployment
        self._prepare = prepare
        self._progress = progress

    def records(
        self, spec: str, method: Method, timeline: Timeline | None = None
    ) -> Iterator[RequestRecord]:
        """Yield the records of a method, each with the seconds of its request at every end."""
        aids = self._trace.aids
        at_ends = self._prepared(spec)
        # Rounds are the same everywhere if the tokens alone decide, by a rule that is the same
        # everywhere.
        is_same = (
            at_ends == [method] * len(self._ends) and round_policy(method).stop_rule is not None
        )
        seconds = [] if is_same else self._decided_anew(spec, at_ends)
        replayed = self._replayed(method, self._deployment, timeline, self._ends if is_same else ())
        for record in self._progress.count(spec, replayed):
            if not is_same:
                record.ends_s = [at_end[record.request_id] for at_end in seconds]
            if aids is not None:
                record.text = aids.decode(record.output_ids, skip_special_tokens=True)
            yield record

    def _prepared(self, spec: str) -> list[Method]:
        """Return the method as it is at each end; none if it cannot be prepared for one of them."""
        # Thresholds stay those that were tuned for the deployment: nobody knows at which end of its
        # range it lies.
        prepare = partial(self._prepare, tuned_for=self._deployment)
        try:
            return [prepare(parse_method(spec), self._trace, end) for end in self._ends]
        except SkitError as error:
            self.missing[spec] = str(error).removeprefix(f"{spec}: ")
            return []

    def _decided_anew(self, spec: str, methods: Sequence[Method]) -> list[dict[str, float]]:
        """Return the seconds of every request at each end; none if the trace does not hold what is
        drafted there.
        """
        try:
            return list(map(self._seconds, methods, self._ends))
        except SkitError as error:
            self.missing[spec] = str(error).removeprefix(f"{spec}: ")
            return []

    def _seconds(self, method: Method, end: Deployment) -> dict[str, float]:
        return {record.request_id: record.e2e_s or 0.0 for record in self._replayed(method, end)}

    def _replayed(
        self,
        method: Method,
        deployment: Deployment,
        timeline: Timeline | None = None,
        ends: Sequence[Deployment] = (),
    ) -> Iterator[RequestRecord]:
        settings = self._settings
        try:
            yield from replay(
                method,
                self._trace.header,
                self._trace,
                deployment=deployment,
                batch_size=settings.batch_size,
                seed=settings.seed,
                timeline=timeline,
                ends=ends,
            )
        except MethodError:
            raise
        except SkitError as error:
            raise SkitError(f"{method.display_name}: {error}") from error


class _ProgressCounter:
    """Counts the records of all methods and reports each."""

    def __init__(self, report: Callable[[Progress], None], planned: int) -> None:
        self._report = report
        self._planned = planned
        self._done = 0

    def count(self, method: str, records: Iterator[RequestRecord]) -> Iterator[RequestRecord]:
        tokens = 0
        for record in records:
            self._done += 1
            tokens += len(record.output_ids)
            self._report(
                Progress(method, self._done, self._planned, tokens / (record.finished_s or 1.0))
            )
            yield record


def dataset_of(trace: TraceFile) -> DatasetDescription:
    """Return what the trace says of its dataset, with the number of prompts that are replayed under
    a limit.
    """
    dataset = trace.recording.dataset
    if len(trace) == trace.recorded * trace.passes or not dataset.count:
        return dataset
    dialogues = Dialogues()
    prompts = len(
        {
            dialogues.index(turn.request_id, turn.prompt_ids, turn.output_ids, turn.dialogue)
            for turn in trace
        }
    )
    # The header counts the chat messages of all prompts together: of some of them it is known if
    # all are or none is.
    chat = None if dataset.chat is None else {dataset.count: prompts, 0: 0}.get(dataset.chat)
    total = dataset.total or dataset.count
    return structs.replace(dataset, count=prompts, total=total, chat=chat)


def _describe(settings: BenchSettings, trace: TraceFile, deployment: Deployment) -> RunFields:
    """Return the content of `run.json` that all methods share."""
    return {
        "dataset": stated(dataset_of(trace)),
        "models": stated(trace.recording.models),
        "config": {
            **recorded_values(settings),
            "max_new_tokens": trace.max_new_tokens,
            "effective_batch_size": settings.batch_size,
            "baseline": settings.baseline,
            "dtype": trace.recording.config.dtype,
        },
        **describe_time(deployment),
        **describe_range((name for name, _ in corners(deployment)), DECIDED_ANEW),
        "trace": stated(
            structs.replace(trace.describe(), requests=len(trace), recorded=trace.recorded)
        ),
        "requests": len(trace),
        **provenance.collect(settings.argv),
    }
