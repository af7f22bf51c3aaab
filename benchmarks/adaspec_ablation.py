"""Replay AdaSpec's Table 2: the gains of its drafter and of its verifier over a threshold, by batch size."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Setting
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import find
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner
from specbench_kit.papers.adaspec import METHODS, ablation
from specbench_kit.predictors.library import PairHashes
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

DEPLOYMENT = "adaspec-a100"
BATCH_SIZES = (1, 4, 16)
MAX_DRAFT = 8
BASELINE, _, ADASPEC = METHODS.values()


def run(setting: Setting) -> Outcome:
    """Decode greedily in modelled time; the speedup is over plain decoding with the same batch size."""
    traces, deployment = _record(setting), find(DEPLOYMENT).build()
    copies = -(-2 * max(BATCH_SIZES) // len(traces))
    requests = [
        replace(trace, request_id=f"{trace.request_id}/{n}")
        for n in range(copies)
        for trace in traces
    ]
    figures = [figure for size in BATCH_SIZES for figure in _figures(requests, deployment, size)]
    title = f"AdaSpec's ablation on {DEPLOYMENT}, {len(traces)} prompts {copies} times each: tokens per round"
    return Outcome(title, figures, _published())


def _published() -> list[str]:
    return [
        f"AdaSpec's Table 2, trace {trace}: {row.accepted:.2f} of {row.drafted:.2f} accepted, "
        f"{row.acceptance_rate:.2f}, {row.speedup:.2f}x, for {spec}"
        for trace, rows in ablation().items()
        for spec, row in rows.items()
    ]


def _record(setting: Setting) -> list[RequestTrace]:
    runners = setting.runners(
        setting.executor_names[0], max(BATCH_SIZES), setting.max_new_tokens + MAX_DRAFT + 1
    )
    answers, _ = setting.decode(runners, AUTOREGRESSIVE, setting.requests, max(BATCH_SIZES))
    longest = max(len(request.prompt_ids) for request in setting.requests)
    model, length = (
        setting.pair.needed_draft.model,
        slot_length(longest, setting.max_new_tokens, MAX_DRAFT),
    )
    draft = Runner(make_executor(model, 1, length, setting.pair.vocabulary))
    recorder = TraceRecorder(runners[0], draft, MAX_DRAFT)
    return [recorder.trace(answer) for answer in answers]


def _figures(
    requests: Sequence[RequestTrace], deployment: Deployment, batch_size: int
) -> list[Figure]:
    replayed = {
        spec: _replay(spec, requests, deployment, batch_size)
        for spec in (AUTOREGRESSIVE, *METHODS.values())
    }
    seconds = {
        spec: max(record.finished_s or 0.0 for record in records)
        for spec, records in replayed.items()
    }
    figures: list[Figure] = []
    for spec in METHODS.values():
        label = f"batch {batch_size}, {spec}"
        figures += _averages(label, [step for record in replayed[spec] for step in record.rounds])
        figures.append(Figure(f"{label}: speed-up", seconds[AUTOREGRESSIVE] / seconds[spec], "x"))
    # A single request leaves nothing to balance; the paper's claim is about batches.
    bound = Bound(least=1) if batch_size > 1 else None
    gain = seconds[BASELINE] / seconds[ADASPEC]
    return [
        *figures,
        Figure(f"batch {batch_size}, {ADASPEC}: times faster than the threshold", gain, "x", bound),
    ]


def _averages(label: str, rounds: Sequence[RoundRecord]) -> list[Figure]:
    names = ("drafted", "submitted", "accepted")
    drafted, submitted, accepted = (mean(getattr(step, name) for step in rounds) for name in names)
    return [
        Figure(f"{label}: drafted", drafted, "tokens"),
        Figure(f"{label}: submitted", submitted, "tokens"),
        Figure(f"{label}: accepted", accepted, "tokens"),
        Figure(f"{label}: acceptance rate", accepted / submitted, ""),
        Figure(f"{label}: draft efficiency", accepted / drafted, ""),
    ]


def _replay(
    spec: str, requests: Sequence[RequestTrace], deployment: Deployment, batch_size: int
) -> list[RequestRecord]:
    method = parse_method(spec).prepare(environment(PairHashes("", ""), deployment))
    header = TraceHeader(MAX_DRAFT, 0.0, (), {})
    return list(replay(method, header, requests, deployment=deployment, batch_size=batch_size))
