"""Record the trace of a dataset with a pair of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.models.runner import Runner
from specbench_kit.profilers.steps import measure_statistics, measure_steps
from specbench_kit.reports.sections import machine as machine_wording
from specbench_kit.runs import provenance
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import LaneTimes, Watch
from specbench_kit.studies.bench.answering import answer_dataset
from specbench_kit.studies.bench.conversations import Conversation, max_conversation_tokens
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.recording import decision_price
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.redaction import Redactor
from specbench_kit.traces.trace import TOKEN_IDS, TraceHeader
from specbench_kit.traces.writing import TraceWriter


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A finished trace file; `failed` requests did not fit the context and are not in it.

    `warnings` say if the machine was too busy for the times in the header.
    """

    path: Path
    requests: int
    offsets: int
    failed: int
    warnings: Sequence[str] = ()


def record(
    settings: BenchSettings,
    dataset: LoadedDataset,
    path: Path,
    max_draft: int,
    report: CountCallback,
    licence: str | None = None,
    text: bool = True,
) -> RecordedTrace:
    """Decode the dataset greedily with the target and write the draft and verdict at every offset to `path`.

    `report` is called after each request. The header names the `licence`; without `text`, no token ids are written.
    """
    placement = Placement(settings.device_map, settings.max_memory)
    pair = load_pair(
        settings.target,
        settings.draft,
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
        placement=placement,
    )
    longest = max(
        max_conversation_tokens(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts
    )
    target, _ = pair.runners(settings.batch_size + 1, longest)
    # One slot drafts from all offsets of a request. Its tree is wide, not deep, so it may exceed the context.
    draft_length = slot_length(longest, settings.max_new_tokens, max_draft)
    draft = pair.needed_draft.runner(1, draft_length, pair.vocabulary)
    draft.masked = pair.masked
    recorder, redactor = TraceRecorder(target, draft, max_draft), Redactor()
    header = _make_header(settings, dataset, pair, (target, draft), max_draft, licence, text)
    done = offsets = failed = 0
    planned = sum(len(prompt.turns) for prompt in dataset.prompts)
    with TraceWriter(path, header) as writer:

        def write(answered: RequestRecord) -> None:
            nonlocal done, offsets, failed
            if answered.finish_reason == "error":
                failed += 1
            else:
                trace = recorder.trace(answered)
                writer.append(trace if text else redactor.redact(trace))
                done, offsets = done + 1, offsets + len(answered.output_ids)
            report(done + failed, planned)

        answer_dataset(dataset, target, pair, settings, Sampler(), write)
    return RecordedTrace(path, done, offsets, failed, machine_wording.warnings(header.run))


def _make_header(
    settings: BenchSettings,
    dataset: LoadedDataset,
    pair: Pair,
    runners: tuple[Runner, Runner],
    max_draft: int,
    licence: str | None,
    text: bool,
) -> TraceHeader:
    """Measure the steps of both models and return the trace's header, with the readings of the machine meanwhile."""
    target = runners[0]
    prompt = _first_fitting_prompt(dataset, pair, target.capacity - max_draft)
    watch, before = Watch(probe_here(), pair.target.model.device), read_processor_time()
    steps = measure_steps(*runners, prompt.prompt_ids, max_draft)
    statistics_s, origin = decision_price.measure_decision(*runners, prompt, max_draft), decision_price.IN_THE_LOOP
    if statistics_s is None:
        statistics_s, origin = measure_statistics(pair.vocabulary, str(pair.needed_draft.model.device)), "timed alone"
    machine = [watch.end({"the trace": LaneTimes(read_processor_time().since(before), steps.timed)})]
    run = {
        "dataset": dataset.describe(),
        "prompts": [prompt.fingerprint for prompt in dataset.prompts],
        "models": pair.describe(provenance.hash_model),
        "config": {
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "limit": settings.limit,
            "dtype": str(pair.target.model.dtype).removeprefix("torch."),
        },
        **provenance.collect(settings.argv),
        "machine": machine,
        "statistics": origin,
    }
    return TraceHeader(
        max_draft,
        steps.draft_s,
        steps.verify_s,
        run,
        statistics_s,
        target.capacity,
        licence=licence,
        lacks=() if text else (TOKEN_IDS,),
    )


def _first_fitting_prompt(dataset: LoadedDataset, pair: Pair, room: int) -> Request:
    """Return the first prompt of less than `room` tokens."""
    requests = (Conversation(prompt, pair.tokenizer, 1).next_request() for prompt in dataset.prompts)
    fitting = (request for request in requests if request and 0 < len(request.prompt_ids) < room)
    if prompt := next(fitting, None):
        return prompt
    raise SkitError(f"no prompt of {dataset.name} fits the context, which has room for {room - 1} tokens of prompt")
