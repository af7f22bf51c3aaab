"""Record the trace of a dataset with a pair of models, and the trees of the methods that it is
recorded for.

A trace also has the times of its models' steps, and what a stop rule adds to each drafted token in
the decoding loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.decoding.drafting.base import DRAFT, Capability, Drafting, parse_drafter
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import Method
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.draft_library import AUTO, HEAD, is_missing_draft, is_missing_head
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.models.runner import Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.steps import measure_statistics, measure_steps
from specbench_kit.reports.sections import machine as machine_wording
from specbench_kit.runs import provenance
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import LaneTimes, Watch
from specbench_kit.runs.parts import KeptParts
from specbench_kit.studies.bench.answering import answer_dataset
from specbench_kit.studies.conversations import Conversation, max_conversation_tokens
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.traces.reading_aids import ReadingAids, reading_aids
from specbench_kit.traces.recording import (
    DrafterTraceRecorder,
    Redactor,
    TraceRecorder,
    slot_length,
)
from specbench_kit.traces.trace import TOKEN_IDS, RequestTrace, TraceFile, TraceHeader
from specbench_kit.traces.tree_recording import PROVISIONAL, TREE_TOKENS, TreeRecorder
from specbench_kit.traces.writing import TraceWriter, UnfinishedTrace, require_same

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.distributions import DistributionStats
    from specbench_kit.decoding.drafter import Drafter


IN_THE_LOOP = "measured in the decoding loop"
MAX_DRAFT = 4
"""Longest drafts that are timed."""
OUTPUT_TOKENS = 16
"""Length of the answers that are timed."""
TURNS = 4
"""How often answers are timed with and without a stop rule."""


class DraftingTimes(NamedTuple):
    """The seconds of a step of the drafter, and those that a stop rule adds to it without its
    score.

    Either is None if nothing was drafted or, for a stop rule, if it could not be told from the
    disturbances of the machine or the drafter gives no statistics.
    """

    step_s: float | None
    decision_s: float | None


def measure_drafting(
    target: Runner,
    drafting: Drafting,
    models: Mapping[str, Runner],
    prompt: Request,
    max_draft: int,
) -> DraftingTimes:
    """Return the seconds that drafting and deciding take per drafted token in drafts of fixed
    length.

    Of a hybrid drafter the steps of its models count, since a look-up's time is one of its options.

    Drafts with and without a stop rule take turns, so that disturbances of the machine affect both
    alike. Disturbances only ever add time, therefore the lower quartile of the rounds counts.
    """
    plain = FixedK(min(max_draft, MAX_DRAFT), drafter=drafting.spec)
    scoring = _ScoringFixedK(plain.k, drafter=drafting.spec)
    steps_s: list[float] = []
    per_token_s: dict[Method, list[float]] = {plain: []}
    if drafting.capability >= Capability.STATISTICS:
        per_token_s[scoring] = []
    counted = {"", *(member.display_name for member in drafting.members if member.models)}
    draft = models.get(DRAFT)
    others = {name: runner for name, runner in models.items() if name != DRAFT}
    for turn in range(TURNS):
        for method, seconds in per_token_s.items():
            loop = local_loop(method, target, draft, others=others, setup=DecodingSetup())
            loop.submit(
                replace(prompt, id=f"{method.display_name}/{turn}", max_new_tokens=OUTPUT_TOKENS)
            )
            while not loop.idle:
                rounds = [round for record in loop.step() for round in record.rounds]
                drafted = [round for round in rounds if round.drafted]
                seconds += [round.policy_s / round.drafted for round in drafted]
                steps_s += [
                    round.draft_s / round.drafted for round in drafted if round.drafter in counted
                ]
    step_s = quantiles(steps_s, n=4)[0] if len(steps_s) > 1 else None
    if min(map(len, per_token_s.values())) < 2 or scoring not in per_token_s:
        return DraftingTimes(step_s, None)
    added_s = quantiles(per_token_s[scoring], n=4)[0] - quantiles(per_token_s[plain], n=4)[0]
    return DraftingTimes(step_s, added_s if added_s > 0 else None)


@dataclass(frozen=True)
class _ScoringFixedK(FixedK):
    """Drafts of fixed length whose policy scores each token as a stop rule does, and never stops
    early.
    """

    display_name = "judging"

    def policy(self) -> Policy:
        return _ScoringPolicy(self.k)


@dataclass
class _ScoringPolicy(Policy):
    k: int

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.k):
            live = [
                draft
                for draft in drafter.extend(live)
                if draft.tree.score(draft.tree.last, _ConstantScore())
            ]


class _ConstantScore:
    """Scores every token with 1 at no cost, so that only the overhead around a score is
    measured.
    """

    def score(self, stats: "DistributionStats", place: int) -> float:
        return 1.0

    def score_chain(self, table: "NDArray[np.float32]") -> list[float]:
        return [1.0] * len(table)


@dataclass(frozen=True)
class TreeMethods:
    """Tree methods by their specs; those that go by latencies draft as on each of the
    deployments.
    """

    specs: tuple[str, ...]
    deployments: Sequence[Deployment | None]

    def __post_init__(self) -> None:
        require(
            bool(self.deployments) and None not in self.deployments,
            "--trees-for names deployments, not local",
        )
        for spec in self.specs:
            method = parse_method(spec)
            drafts_trees = (
                method.required_capability == Capability.TREES and method.pipeline is None
            )
            is_recordable = (
                drafts_trees and not method.own_distributions and not method.reads_divergences
            )
            require(
                is_recordable,
                f"--trees {spec}: {method.display_name} drafts no trees of the draft model's tokens",
            )
            same = method.drafting == parse_drafter("model")
            require(
                same,
                f"--trees {spec}: the trees of drafter '{method.drafter}' cannot be recorded, only the model's",
            )

    def prepared(self, header: TraceHeader) -> Sequence[Method]:
        """Return the methods for the pair of a trace, each as often as it differs between the
        deployments.
        """
        hashes = [header.recording.model_hash(role) for role in ("target", "draft")]
        pair = PairHashes(*(found or "" for found in hashes))
        # No round is left to a server, since any round may be drafted on another deployment.
        places = [
            replace(environment(pair, deployment), server_decodes=False)
            for deployment in self.deployments
        ]
        methods = list[Method]()
        for spec in self.specs:
            for place in places:
                try:
                    method = parse_method(spec).prepare(place)
                except SkitError as error:
                    raise SkitError(f"--trees {spec}: {error}") from error
                if method not in methods:
                    methods.append(method)
        return methods


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A trace file; `failed` requests did not fit the context and are not in it.

    It holds fewer than the `planned` requests if --minutes ended the recording, which may be
    `resumable`. `warnings` say if the machine was too busy for the times in the header.
    """

    path: Path
    requests: int
    offsets: int
    failed: int
    planned: int
    resumable: bool
    warnings: Sequence[str] = ()

    @property
    def partial(self) -> bool:
        """Return True if requests are missing that could have been recorded."""
        return self.requests + self.failed < self.planned


def record(
    settings: RecordingSettings,
    dataset: LoadedDataset,
    path: Path,
    max_draft: int,
    report: CountCallback,
    licence: str | None = None,
    text: bool = True,
    drafter: str = "model",
    resume: bool = False,
    trees: TreeMethods | None = None,
) -> RecordedTrace:
    """Decode the dataset greedily with the target and write the draft and verdict at every offset
    to `path`.

    `report` is called after each request. The header names the `licence`; without `text`, no token ids are written.
    Requests are kept as they finish, so that `resume` goes on after an interruption or after the settings' minutes,
    unless drafts depend on their order. `trees` are the methods whose trees can be replayed on the trace.
    """
    drafting = recorded_drafter(drafter, settings)
    behind = max_draft + 1 if trees is None else max(max_draft + 1, TREE_TOKENS)
    names = _request_ids(dataset)
    unfinished = UnfinishedTrace(path, names)
    stored = unfinished.begin(resume=resume)
    pair = _load(settings, drafting)
    decode = partial(pair.tokenizer.decode, skip_special_tokens=True)
    # Answers are decoded as far beyond their limit as a draft can reach.
    answering = replace(settings, max_new_tokens=settings.max_new_tokens + behind)
    longest = behind + max(
        max_conversation_tokens(prompt, pair.tokenizer, settings.max_new_tokens)
        for prompt in dataset.prompts
    )
    runners = pair.all_runners(settings.batch_size + 1, longest)
    target = runners.pop("target")
    recorder = _make_recorder(
        pair, target, drafting, longest, settings.max_new_tokens, max_draft, behind
    )
    header = _plan_header(
        settings, dataset, pair, target, drafting, runners, max_draft, licence, text
    )
    tree_recorder = None
    if trees is not None:
        header = structs.replace(header, trees=trees.specs)
        draft = pair.needed_draft.runner(1, longest + PROVISIONAL, pair.vocabulary)
        draft.masked = pair.masked
        first = _first_fitting_prompt(dataset, pair, target.capacity - max_draft)
        tree_recorder = TreeRecorder(draft, trees.prepared(header), header, first.prompt_ids)
    if stored is None:
        header = _add_times(header, dataset, pair, target, drafting, runners)
    else:
        require_same(path, stored, header)
        header = stored
    with unfinished.one_writer():
        unfinished.begin(resume=resume)  # another process may have recorded since, and ended
        finished = {trace.request_id: _as_record(trace, decode) for trace in unfinished.traces()}
        answers = dict[str, tuple[RequestRecord, list[int]]]()
        failed = 0

        def store(answered: RequestRecord) -> None:
            nonlocal failed
            continuation = _cut(answered, settings.max_new_tokens, decode)
            failed += answered.finish_reason == "error"
            if answered.finish_reason != "error":
                if drafting.depends_on_order:
                    answers[answered.request_id] = answered, continuation
                else:
                    trace = recorder.trace(answered, continuation)
                    if tree_recorder is not None:
                        trace = replace(trace, candidates=tree_recorder.columns(trace))
                    unfinished.append(header, trace)
                    finished[answered.request_id] = answered
            report(len(finished) + len(answers) + failed, len(names))

        answer_dataset(
            dataset,
            target,
            pair,
            answering,
            Sampler(),
            store,
            finished,
            TimeLimit(settings.minutes),
        )
        if missing := len(names) - len(finished) - len(answers) - failed:
            part = {"requests": len(finished) + len(answers), "planned": len(names)}
            header = structs.replace(
                header,
                run={**header.run, "dataset": {**stated(dataset.describe()), "recorded": part}},
            )
        in_order = (recorder.trace(*answers[name]) for name in names if name in answers)
        traces = in_order if drafting.depends_on_order else unfinished.traces()
        requests, offsets = _write(
            path, header, traces, _TextReader(pair, dataset) if text else None
        )
        resumable = bool(missing) and not drafting.depends_on_order
        if not resumable:
            unfinished.remove()
        warnings = machine_wording.warnings(header.recording)
        return RecordedTrace(path, requests, offsets, failed, len(names), resumable, warnings)


def record_once(
    parts: KeptParts,
    settings: RecordingSettings,
    dataset: LoadedDataset,
    max_draft: int,
    report: CountCallback,
    *,
    resume: bool,
) -> TraceFile:
    """Return the trace in the folder of a study; it is recorded there, or to its end, if it is not
    whole.
    """
    path = parts.folder / "trace.parquet"
    if not path.exists():

        def begin(done: int, planned: int) -> None:
            parts.begin()  # not before: what cannot be recorded leaves no file
            report(done, planned)

        with parts.kept_when_interrupted():
            record(settings, dataset, path, max_draft, begin, resume=resume)
    return TraceFile(path)


def _request_ids(dataset: LoadedDataset) -> list[str]:
    """Return the ids of all requests, in the order in which single requests are answered."""
    return [
        prompt.id if len(prompt.turns) == 1 else f"{prompt.id}/{turn}"
        for prompt in dataset.prompts
        for turn in range(1, len(prompt.turns) + 1)
    ]


def _as_record(trace: RequestTrace, decode: Callable[[list[int]], str]) -> RequestRecord:
    """Return the record of a request that an interrupted recording has answered."""
    text = decode(trace.output_ids)
    return RequestRecord(
        trace.request_id, trace.category, trace.prompt_ids, trace.output_ids, text=text
    )


def _cut(answered: RequestRecord, limit: int, decode: Callable[[list[int]], str]) -> list[int]:
    """Cut an answer to its limit, and return the tokens that were decoded behind it."""
    behind = answered.output_ids[limit:]
    if behind:
        answered.output_ids = answered.output_ids[:limit]
        answered.finish_reason = "length"
        answered.text = decode(answered.output_ids)
    return behind


class _TextReader:
    """Notes the texts of a trace, and returns what they can be read by."""

    def __init__(self, pair: Pair, dataset: LoadedDataset) -> None:
        self._tokenizer = pair.tokenizer
        self._tools = {
            prompt.dialogue or prompt.id: prompt.tools for prompt in dataset.prompts if prompt.tools
        }
        self._tokens: set[int] = set()
        self._answers: list[list[int]] = []

    def note(self, trace: RequestTrace) -> None:
        self._tokens.update(trace.prompt_ids, trace.output_ids, trace.continuation)
        self._answers.append(trace.output_ids)

    def aids(self) -> ReadingAids | None:
        return reading_aids(self._tokenizer, self._tokens, self._answers, self._tools)


def _write(
    path: Path, header: TraceHeader, traces: Iterable[RequestTrace], reader: _TextReader | None
) -> tuple[int, int]:
    """Write a trace file, without texts if there is no reader of them; return its numbers of
    requests and offsets.
    """
    redactor = Redactor()
    requests = offsets = 0
    with TraceWriter(path, header) as writer:
        for trace in traces:
            if reader is not None:
                reader.note(trace)
            writer.append(trace if reader is not None else redactor.redact(trace))
            requests = requests + 1
            offsets = offsets + len(trace.output_ids)
        if reader is not None:
            writer.aids = reader.aids()
    return requests, offsets


def recorded_drafter(drafter: str, settings: RecordingSettings) -> Drafting:
    """Return the drafter of a trace for the settings' target; raise SkitError if no trace can hold
    its drafts.
    """

    def exists(model: str) -> bool:
        target = locate(settings.target, "target")
        return not (
            is_missing_draft(settings.draft, target)
            if model == DRAFT
            else is_missing_head(model, target)
        )

    drafting = parse_drafter(drafter).resolved(exists)
    require(
        settings.draft == AUTO or DRAFT in drafting.models,
        f"--draft has no effect: drafter '{drafter}' runs no draft model; leave out one of them",
    )
    if not drafting.recordable:
        raise SkitError(
            f"a trace cannot hold the drafts of '{drafter}': take model, head, medusa, first-of or a look-up, or "
            "run it live"
        )
    return drafting


def _load(settings: RecordingSettings, drafting: Drafting) -> Pair:
    """Load the target and the models that the drafter forwards."""
    return load_pair(
        settings.target,
        settings.draft if DRAFT in drafting.models else None,
        others=[name for name in drafting.models if name != DRAFT],
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
        placement=Placement(settings.device_map, settings.max_memory),
    )


def _make_recorder(
    pair: Pair,
    target: Runner,
    drafting: Drafting,
    longest: int,
    answer: int,
    max_draft: int,
    behind: int,
) -> TraceRecorder:
    """Return the recorder of a drafter, for texts of up to `longest` tokens with answers of up to
    `answer` tokens.
    """
    plain_model = drafting == parse_drafter("model")
    # One slot drafts from all offsets of a request. Its tree is wide, not deep, so it may exceed
    # the context.
    length = slot_length(longest, answer, max_draft) if plain_model else longest + max_draft + 1
    models = {}
    for name in drafting.models:
        models[name] = pair.loaded[name].runner(1, length, pair.vocabulary)
        models[name].masked = () if name.startswith(HEAD) else pair.masked
    if plain_model:
        return TraceRecorder(target, models[DRAFT], max_draft, behind)
    return DrafterTraceRecorder(target, drafting, models, max_draft)


def _plan_header(
    settings: RecordingSettings,
    dataset: LoadedDataset,
    pair: Pair,
    target: Runner,
    drafting: Drafting,
    models: Mapping[str, Runner],
    max_draft: int,
    licence: str | None,
    text: bool,
) -> TraceHeader:
    """Return the trace's header without times."""
    layers = tuple(drafting.layers(models))
    run = {
        "dataset": stated(dataset.describe()),
        "prompts": [prompt.fingerprint for prompt in dataset.prompts],
        "models": stated(pair.describe(provenance.hash_model)),
        "config": {
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "limit": settings.limit,
            "dtype": str(pair.target.dtype).removeprefix("torch."),
        },
        **provenance.collect(settings.argv),
    }
    return TraceHeader(
        max_draft,
        0.0,
        (0.0,) * (max_draft + 1),
        run,
        capacity=target.capacity,
        licence=licence,
        lacks=() if text else (TOKEN_IDS,),
        drafter=drafting.spec,
        state_layers=layers,
        state_bytes=target.executor.state_bytes if layers else 0,
    )


def _add_times(
    header: TraceHeader,
    dataset: LoadedDataset,
    pair: Pair,
    target: Runner,
    drafting: Drafting,
    models: Mapping[str, Runner],
) -> TraceHeader:
    """Measure the steps of all models and return the header with them, and with the readings of the
    machine.
    """
    max_draft = header.max_draft
    prompt = _first_fitting_prompt(dataset, pair, target.capacity - max_draft)
    watch = Watch(probe_here(), pair.target.device)
    before = read_processor_time()
    # A draft model alone is timed by its forwards, other drafters in the decoding loop.
    draft = models[DRAFT] if drafting.models == (DRAFT,) and not drafting.members else None
    steps = measure_steps(target, draft, prompt.prompt_ids, max_draft)
    times = measure_drafting(target, drafting, models, prompt, max_draft)
    statistics_s = times.decision_s
    origin = IN_THE_LOOP
    if statistics_s is None:
        statistics_s = measure_statistics(pair.vocabulary, str(target.device))
        origin = "timed alone"
    machine = [
        watch.end({"the trace": LaneTimes(read_processor_time().since(before), steps.timed)})
    ]
    return structs.replace(
        header,
        draft_s=steps.draft_s or (times.step_s or 0.0) * drafting.tokens_per_forward,
        verify_s=steps.verify_s,
        statistics_s=statistics_s,
        run={**header.run, "machine": machine, "statistics": origin},
    )


def _first_fitting_prompt(dataset: LoadedDataset, pair: Pair, room: int) -> Request:
    """Return the first prompt of less than `room` tokens."""
    requests = (
        Conversation(prompt, pair.tokenizer, 1).next_request() for prompt in dataset.prompts
    )
    fitting = (request for request in requests if request and 0 < len(request.prompt_ids) < room)
    if prompt := next(fitting, None):
        return prompt
    raise SkitError(
        f"no prompt of {dataset.name} fits the context, which has room for {room - 1} tokens of prompt"
    )
