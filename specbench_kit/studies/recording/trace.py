"""Record a dataset's trace with a pair of models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.models.runner import Runner
from specbench_kit.profilers.steps import measure_statistics, measure_steps
from specbench_kit.reports.writing import machine as machine_wording
from specbench_kit.runs import provenance
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import LaneTimes, Watch
from specbench_kit.studies.bench.conversations import Conversation, ConversationScript, most_tokens
from specbench_kit.studies.bench.lanes import MethodLane
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.recording import decision_price
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.redaction import Redactor
from specbench_kit.traces.trace import TOKEN_IDS, TraceHeader
from specbench_kit.traces.writing import TraceWriter


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A finished trace file; `failed` requests did not fit the context and are not in it."""

    path: Path
    requests: int
    offsets: int
    failed: int
    warnings: Sequence[str] = ()
    """Whether the machine was too busy for the times in the header."""


def record(
    settings: BenchSettings,
    dataset: LoadedDataset,
    path: Path,
    max_draft: int,
    report: CountCallback,
    licence: str | None = None,
    text: bool = True,
) -> RecordedTrace:
    """Decode the dataset greedily with the target and write what both models say at every offset.

    `report(done, planned)` is called after each request. The header names the `licence`; without `text`, token ids are
    not written.
    """
    where = {"device": settings.device, "dtype": settings.dtype}
    placement = Placement(settings.device_map, settings.max_memory)
    pair = load_pair(settings.target, settings.draft, **where, placement=placement)
    longest = max(most_tokens(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts)
    target, _ = pair.runners(settings.batch_size + 1, longest)
    draft = _draft_runner(pair, slot_length(longest, settings.max_new_tokens, max_draft))
    recorder = TraceRecorder(target, draft, max_draft)
    conversations = [Conversation(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts]
    found = _header(settings, dataset, pair, (target, draft), max_draft)
    header, redactor = replace(found, licence=licence, lacks=() if text else (TOKEN_IDS,)), Redactor()
    done = offsets = failed = 0
    planned = sum(len(prompt.turns) for prompt in dataset.prompts)
    with TraceWriter(path, header) as writer:

        def keep(answered: RequestRecord) -> None:
            nonlocal done, offsets, failed
            if answered.finish_reason == "error":
                failed += 1
            else:
                trace = recorder.trace(answered)
                writer.append(trace if text else redactor.without_text(trace))
                done, offsets = done + 1, offsets + len(answered.output_ids)
            report(done + failed, planned)

        lane = MethodLane(
            name="recording",
            engine=live_engine(
                Autoregressive(),
                target,
                target,
                sampler=Sampler(),
                seed=settings.seed,
                eos_ids=pair.eos_ids,
                batch_size=settings.batch_size,
            ),
            script=ConversationScript(conversations, {}),
            decode=lambda ids: str(pair.tokenizer.decode(ids, skip_special_tokens=True)),
            sinks=[keep],
        )
        while not lane.done:
            for _ in lane.turn(settings.batch_size):
                pass
    return RecordedTrace(path, done, offsets, failed, machine_wording.warnings(header.run))


def _draft_runner(pair: Pair, length: int) -> Runner:
    """One slot for all offsets of a request; its tree is wide, not deep, so it may be longer than the context."""
    runner = Runner(make_executor(pair.needed_draft.model, 1, length, pair.vocabulary))
    runner.masked = pair.masked
    return runner


def _header(
    settings: BenchSettings, dataset: LoadedDataset, pair: Pair, runners: tuple[Runner, Runner], max_draft: int
) -> TraceHeader:
    prompt = _fitting_prompt(dataset, pair, runners[0].capacity - max_draft)
    watch, before = Watch(probe_here(), pair.target.model.device), read_processor_time()
    steps = measure_steps(*runners, prompt.prompt_ids, max_draft)
    statistics_s, timed = decision_price.measure_decision(*runners, prompt, max_draft), decision_price.IN_THE_LOOP
    if statistics_s is None:
        statistics_s, timed = measure_statistics(pair.vocabulary, str(pair.needed_draft.model.device)), "timed alone"
    machine = [watch.end({"the trace": LaneTimes(read_processor_time().since(before), steps.timed)})]
    config = {"max_new_tokens": settings.max_new_tokens, "seed": settings.seed, "limit": settings.limit}
    run = {
        "dataset": dataset.describe(),
        "prompts": [prompt.fingerprint for prompt in dataset.prompts],
        "models": pair.describe(provenance.hash_model),
        "config": {**config, "dtype": str(pair.target.model.dtype).removeprefix("torch.")},
        **provenance.collect(settings.argv),
        "machine": machine,
        "statistics": timed,
    }
    return TraceHeader(max_draft, steps.draft_s, steps.verify_s, run, statistics_s, runners[0].capacity)


def _fitting_prompt(dataset: LoadedDataset, pair: Pair, room: int) -> Request:
    """The first prompt of less than `room` tokens."""
    requests = (Conversation(prompt, pair.tokenizer, 1).next_request() for prompt in dataset.prompts)
    fitting = (request for request in requests if request and 0 < len(request.prompt_ids) < room)
    if prompt := next(fitting, None):
        return prompt
    raise SkitError(f"no prompt of {dataset.name} fits the context, which has room for {room - 1} tokens of prompt")
