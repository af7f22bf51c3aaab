"""Choose each method's options on half of a trace's requests, and measure on the other half what
that gains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from random import Random

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.methods.base import methods
from specbench_kit.methods.selection import expand_specs
from specbench_kit.methods.spec import parse_method, with_option
from specbench_kit.metrics.statistics import interval_of_ratio
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.study import RUN, command_of, finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.studies.tuned_options import (
    TunedDraft,
    TunedMethod,
    TunedOptions,
    TunedTrace,
    save,
)
from specbench_kit.studies.tuning.kind import DRAFTS, TUNING, TuningStudy
from specbench_kit.studies.tuning.objectives import OBJECTIVES, Measure, tokens_per_s
from specbench_kit.studies.tuning.options import TuningOptions
from specbench_kit.studies.tuning.summary import TuningSummary
from specbench_kit.traces.draft_limits import fit_spec, lowered_limits
from specbench_kit.traces.replay import (
    prepare_for_replay,
    recording_deployment,
    replay,
    takes_recorded_drafter,
)
from specbench_kit.traces.trace import RequestTrace, TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings(TuningOptions):
    """The options of a tuning run; every other request of a trace is kept for the test."""

    deployment: Deployment | None = None
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.budget >= 1, f"--budget must be at least 1, not {self.budget}")
        require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        require(bool(self.traces), "--replay names no trace: record one with skit record")
        require(
            self.deployment is None or len(self.traces) == 1,
            "several traces are compared by the times of the machine that recorded them: leave out --deployment, or "
            "tune on one trace",
        )


def run_tuning(settings: TuningSettings, file: Path, report: ProgressCallback) -> TuningStudy:
    """Write the options of every method into a file for `skit bench --tuned`, and the study into a
    folder beside it.

    Raise SkitError, before the work begins, if the folder holds what another command wrote.
    """
    folder = file.with_suffix("")
    require(
        not folder.is_file()
        and (not (folder / RUN).exists() or command_of(folder) == TUNING.command),
        f"--out {file}: the page goes into the folder {folder}, which holds something else: name another file",
    )
    tuned, left_out = tune(settings, report)
    save(tuned, file)
    # What an earlier tuning found must not stand beside the description of this one.
    for name in (TUNING.summary, DRAFTS):
        (folder / name).unlink(missing_ok=True)
    return finish(TUNING, folder, _describe(settings, tuned), TuningSummary.of(tuned, left_out))


def _describe(settings: TuningSettings, tuned: TunedOptions) -> RunFields:
    """Return the content of `run.json`, with the trace whose draft was chosen."""
    traces = map(
        TraceFile, settings.traces
    )  # which finds those that come with the kit by their names
    trace = next(
        trace for trace in traces if provenance.hash_file(trace.path) == tuned.run["trace"]
    )
    lowered = tuned.run.get("lowered_limits")
    run: RunFields = {
        "command": TUNING.command,
        "dataset": stated(trace.recording.dataset),
        "models": stated(trace.recording.models),
        **({"lowered_limits": lowered} if lowered else {}),
        "trace": stated(trace.describe()),
        "config": {
            "methods": list(settings.methods),
            "budget": settings.budget,
            "objective": settings.objective,
            "batch_size": settings.batch_size,
            "seed": settings.seed,
        },
        "time_kind": "modelled",
        "deployment": describe(_deployment(settings, trace)),
    }
    return {**run, **provenance.collect(settings.argv, arithmetic=True)}


def _deployment(settings: TuningSettings, trace: TraceFile) -> Deployment:
    """Return the deployment on whose time a trace is replayed: the given one, or that of its own
    recording.
    """
    if settings.deployment is not None:
        return settings.deployment
    # The machine may have been faster at one recording than at the other, so that verification has
    # one time.
    verifier = recording_deployment(TraceFile(settings.traces[0]).header).verifier
    return replace(recording_deployment(trace.header), verifier=verifier)


def tune(settings: TuningSettings, report: ProgressCallback) -> tuple[TunedOptions, dict[str, str]]:
    """Return the best candidate of every method, and the reasons why methods have none.

    Of several traces it is those of the draft with which the best method was best on the requests that choose.
    `report` is called with the method and the number of its candidates.
    """
    tuners = _tuners(settings)
    outcomes = [_tune(settings, tuner, report) for tuner in tuners]
    best = max(range(len(tuners)), key=lambda number: tuners[number].best_value)
    tuned, left_out = outcomes[best]
    if len(tuners) > 1:
        order = sorted(range(len(tuners)), key=lambda number: number != best)
        drafts = [
            _of_draft(tuners[number], outcomes[number][0])
            for number in order
            if outcomes[number][0].methods
        ]
        tuned = replace(tuned, drafts=drafts if len(drafts) > 1 else [])
    if settings.deployment is None:
        tuned = replace(tuned, disturbed=[line for tuner in tuners for line in tuner.disturbed])
    return tuned, left_out


def _tuners(settings: TuningSettings) -> list["_Tuner"]:
    """Return a tuner per trace; raise SkitError for traces that cannot be compared."""
    tuners: list[_Tuner] = []
    for path in settings.traces:
        trace = TraceFile(path)
        requests = list(trace)
        if len(requests) < 2:
            raise SkitError(
                f"the trace {path} holds {len(requests)} requests: tuning needs at least 2, half to choose the options "
                "and half to test them"
            )
        answers = [_answer(request) for request in requests]
        tuner = _Tuner(settings, trace, requests[::2], requests[1::2], answers)
        if tuners:
            require(
                answers == tuners[0].answers,
                f"{path} and {settings.traces[0]} do not hold the same answers to the same prompts: record both with "
                "the same target and prompts, so that their speeds can be compared",
            )
        tuners.append(tuner)
    return tuners


def _answer(request: RequestTrace) -> tuple[str, list[int], list[int]]:
    return request.request_id, list(request.prompt_ids), list(request.output_ids)


def _of_draft(tuner: "_Tuner", tuned: TunedOptions) -> TunedDraft:
    spec, best = max(tuned.methods.items(), key=lambda item: item[1].merit)
    return TunedDraft(
        tuner.draft,
        tuner.trace.path.name,
        tuner.trace.header.draft_s,
        spec,
        best.spec,
        best.tokens_per_s,
        best.value,
    )


def _tune(
    settings: TuningSettings, tuner: "_Tuner", report: ProgressCallback
) -> tuple[TunedOptions, dict[str, str]]:
    trace = tuner.trace
    tuned: dict[str, TunedMethod] = {}
    left_out: dict[str, str] = {}
    for spec, named in expand_specs(settings.methods, [BASELINE]).items():
        if named and ":" in spec:
            raise SkitError(
                f"skit tune chooses the options itself: name {spec.partition(':')[0]} alone"
            )
        try:
            tuned[spec] = tuner.choose(spec, report)
        except SkitError as error:
            if named:
                raise
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
    lowered = lowered_limits(tuned, trace.header).get("lowered_limits")
    run: TunedTrace = {
        "dataset": stated(trace.recording.dataset),
        "models": stated(trace.recording.models),
        "requests": len(tuner.choosing) + len(tuner.test),
        "trace": provenance.hash_file(trace.path),
        "seed": settings.seed,
        "argv": provenance.shareable(settings.argv),
        **({"lowered_limits": dict(lowered)} if lowered else {}),
    }
    return TunedOptions(
        tuned,
        tuner.deployment.name,
        settings.batch_size,
        settings.budget,
        run,
        objective=settings.objective,
    ), left_out


def candidates(name: str, budget: int, seed: int) -> list[str]:
    """Return the specs to try: the method's defaults, then a random sample of its grid without
    repetition.

    The sample depends on the method and the seed only.
    """
    grid = methods.get(name).grid
    points = (
        [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []
    )
    Random(f"{seed}/{name}").shuffle(points)
    specs = []
    for point in points:
        options = ",".join(f"{key}={value}" for key, value in point.items())
        specs.append(f"{name}:{options}")
    default = parse_method(name)
    return [name, *islice((spec for spec in specs if parse_method(spec) != default), budget - 1)]


@dataclass
class _Tuner:
    """Replays candidates on the `choosing` requests, and the best on the `test` requests."""

    settings: TuningSettings
    trace: TraceFile
    choosing: Sequence[RequestTrace]
    test: Sequence[RequestTrace]

    answers: list[tuple[str, list[int], list[int]]]
    """The recorded answers of all requests, in which traces that are compared must not differ."""
    best_value: float = 0.0
    """What the objective maximises, of the best candidate of all methods on the choosing requests."""

    def __post_init__(self) -> None:
        self.deployment = _deployment(self.settings, self.trace)
        self.measure = OBJECTIVES[self.settings.objective]

    @property
    def disturbed(self) -> list[str]:
        """What disturbed the machine while the steps of the trace were timed; empty if nothing
        did.
        """
        found = disturbances(self.trace.recording.machine)
        return [f"{self.trace.path.name}: {line}" for line in found]

    @property
    def draft(self) -> str:
        """The name of the draft model, which says how it is computed if not as its file has it."""
        return self.trace.model_name("draft")

    def choose(self, name: str, report: ProgressCallback) -> TunedMethod:
        """Return the best candidate; candidates that the trace cannot serve are skipped."""
        grid = candidates(name, self.settings.budget, self.settings.seed)
        longest = self.trace.header.max_draft
        grid += methods.get(name).tuning_specs(
            self._choosing_value, self.settings.batch_size, longest
        )
        if takes_recorded_drafter(parse_method(name), self.trace.header):
            # The tuned options are for runs without the trace, which have to draft in the same way.
            grid = [with_option(spec, "drafter", self.trace.header.drafter) for spec in grid]
        specs = list(dict.fromkeys(fit_spec(spec, self.trace.header) for spec in grid))
        values: dict[str, float] = {}
        errors: list[SkitError] = []
        for tried, spec in enumerate(specs, 1):
            try:
                values[spec] = self._choosing_value(spec, self.settings.batch_size)
            except SkitError as error:
                errors.append(error)
            report(name, tried, len(specs))
        if not values:
            raise errors[0]
        best = max(values, key=values.__getitem__)
        self.best_value = max(self.best_value, values[best])
        size = self.settings.batch_size
        tuned = self._replayed(best, self.test, size)
        default = self._replayed(specs[0], self.test, size) if specs[0] in values else None
        measure = self.measure
        # Requests of a batch share their time, and nothing else.
        comparable = size == 1 or not measure.speed
        return TunedMethod(
            best,
            len(values),
            tokens_per_s(tuned),
            tokens_per_s(default) if default else None,
            _gain_interval(measure, tuned, default) if default and comparable else None,
            None if measure.speed else measure.value(tuned),
            measure.value(default) if default and not measure.speed else None,
        )

    def _choosing_value(self, spec: str, batch_size: int) -> float:
        value = self.measure.value(self._replayed(spec, self.choosing, batch_size))
        if value is None:
            raise SkitError(
                f"{spec}: drafts nothing here, of which {self.measure.unit} say nothing: choose by another --for"
            )
        return value

    def _replayed(
        self, spec: str, requests: Sequence[RequestTrace], batch_size: int
    ) -> list[RequestRecord]:
        method = prepare_for_replay(parse_method(spec), self.trace, self.deployment, batch_size)
        return list(
            replay(
                method,
                self.trace.header,
                requests,
                deployment=self.deployment,
                batch_size=batch_size,
                seed=self.settings.seed,
            )
        )


def _gain_interval(
    measure: Measure, tuned: Sequence[RequestRecord], default: Sequence[RequestRecord]
) -> list[float] | None:
    """Return the interval of the gain, from what the same requests take with either options."""
    return interval_of_ratio(
        [measure.spent(record) for record in default], [measure.spent(record) for record in tuned]
    )
