"""Records and run descriptions for the report tests."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.deployments.description import described
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.comparison import Decode, compare, with_requests
from specbench_kit.metrics.method_metrics import MethodMetrics
from specbench_kit.metrics.result import Comparison, RunResult
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.run_summary import MethodRow, RunSummary, method_row, read_summary
from specbench_kit.metrics.summary import summarise
from specbench_kit.reports import render_markdown
from specbench_kit.reports.comparison import report as comparison_report
from specbench_kit.reports.run import report as run_report
from specbench_kit.runs.deployment import DeploymentDescription
from specbench_kit.runs.document import RunDocument
from specbench_kit.serving.figures import (
    GroupFigures,
    MissCauses,
    ServerLoad,
    ServingCost,
    ServingFigures,
    SteadyState,
    TimeSeries,
)
from specbench_kit.studies.serving.summary import ServingDescription


def run_document(content: Mapping[str, object]) -> RunDocument:
    """The run as it is read from a file with this content."""
    return RunDocument.read({"schema_version": 1, **content})


def deployment_description(**changes: object) -> DeploymentDescription:
    """The deployment `wan` with these changes, as it is read from a file."""
    return replace(described(load("wan")), **changes)


def priced(server: float, edge: float, placement: str = "edge") -> DeploymentDescription:
    """The deployment `wan` at these prices per hour."""
    wan = deployment_description()
    return replace(
        wan,
        placement=placement,
        verifier=replace(wan.verifier, price_per_hour=server),
        drafter=replace(wan.drafter, price_per_hour=edge),
    )


def run_summary(content: Mapping[str, object]) -> RunSummary:
    """The summary as it is read from a file with this content."""
    return read_summary(json.loads(json.dumps(content)))


def make_row(**values: object) -> MethodRow:
    """A row of a table with these values, of a method without requests."""
    return method_row(
        MethodMetrics(RequestGroup([]), NO_REQUESTS, {}).own() | {"intervals": {}} | values
    )


N = TypeVar("N")


def serving_figures(nothing: N, **overall: Any) -> ServingFigures[N]:
    """The figures of a simulation with these figures over all devices; `nothing` is every other number."""
    latencies = dict.fromkeys(("ttft_s", "tpot_s", "icl_s", "response_s"))
    rates = dict.fromkeys(
        ("violation_rate", "starved_rate", "deadline_miss_rate", "slow_round_rate")
    )
    rates |= dict.fromkeys(("acceptance_length", "submitted_per_verify"))
    spreads = dict.fromkeys(("speed", "queue_s", "verify_s", "interference"))
    counts = dict.fromkeys(("responses", "rounds", "throughput", "goodput"), nothing)
    server = dict.fromkeys(
        ("utilisation", "batches", "refusals", "idle_while_waiting_s", "evictions"), nothing
    )
    server |= dict.fromkeys(("evictions_per_response", "peak_kv_tokens"), nothing)
    return ServingFigures(
        overall=GroupFigures(**{**latencies, **rates, **spreads, **counts, **overall}),
        classes={},
        kinds={},
        violations=MissCauses(nothing, nothing, nothing),
        server=ServerLoad(**server, batch_size=None, left_waiting=None, estimate_over_true=None),
        steady=SteadyState(None, True, nothing),
        over_time=TimeSeries([], [], [], [], [], []),
        cost=ServingCost(
            energy_j=None,
            joules_per_token=None,
            edge_busy_s=nothing,
            price=nothing,
            tokens_per_price=None,
            rented_price=nothing,
            tokens_per_rented_price=None,
        ),
    )


def serving_run(*series: JsonObject, seeds: int = 5, **changes: Any) -> ServingDescription:
    """The description of a simulation of these series, which say no more than they have to."""
    config = {
        "seeds": seeds,
        "duration_s": 10.0,
        "warmup_s": 1.0,
        "slo": ["2"],
        "objective": "speed",
    }
    config |= {"arrivals": "closed", "max_batch": 64}
    entry: dict[str, Any] = dict.fromkeys(
        ("label", "system", "summary", "scheduler", "method", "deployment"), ""
    )
    entry |= {"acceptance": None, "kv": {"tokens": None, "context": None, "origin": ""}}
    entries = []
    for changed_series in series:
        typical = {
            "submitted": 0.0,
            "acceptance": 0.0,
            "committed": 1.0,
            "longest": 8,
            **changed_series.get("typical", {}),
        }
        entries.append({**entry, **changed_series, "typical": typical})
    return ServingDescription.read({"config": config, "series": entries, **changes})


def render_run(
    run: dict[str, Any],
    summary: dict[str, Any],
    records: list[RequestRecord],
    decode: Decode | None = None,
    **options: Any,
) -> str:
    """Return the report on one run as Markdown."""
    result = RunResult(name="run", fields=run_document(run), summary=run_summary(summary))
    return render_markdown.render(
        run_report.build(with_requests(result, records, decode), **options)
    )


def render_comparison(*args: object, **options: Any) -> str:
    """Return the report on several runs as Markdown."""
    return render_markdown.render(comparison_report.build(*args, **options))


def comparison_of(
    records: list[RequestRecord], baseline: list[RequestRecord], summary: dict[str, Any], **run: Any
) -> Comparison:
    """The comparison of one method with plain decoding."""
    fields = run_document(make_run(**run))
    return compare(
        [
            BenchmarkRun(
                Path("run"),
                fields,
                RequestGroup(records),
                RequestGroup(baseline),
                run_summary(summary | {"method": fields.method}),
            )
        ]
    )


def make_round(
    drafted: int = 0,
    submitted: int | None = None,
    accepted: int = 0,
    committed: int | None = None,
    **seconds: float,
) -> RoundRecord:
    """A round; by default all that was drafted is sent, and accepted + 1 tokens are committed."""
    times = dict.fromkeys(
        ("prefill_s", "draft_s", "policy_s", "link_s", "queue_s", "verify_s", "commit_s", "end_s"),
        0.0,
    )
    return RoundRecord(
        drafted=drafted,
        submitted=drafted if submitted is None else submitted,
        accepted=accepted,
        committed=accepted + 1 if committed is None else committed,
        **(times | seconds),
    )


def make_record(
    request_id: str, *rounds: RoundRecord, category: str = "chat", **fields: object
) -> RequestRecord:
    """A finished request whose times follow from its rounds."""
    tokens = sum(r.committed for r in rounds)
    record = RequestRecord(
        request_id, category, [1, 2], list(range(10, 10 + tokens)), rounds=list(rounds)
    )
    if rounds:
        record.ttft_s, record.e2e_s = rounds[0].end_s, rounds[-1].end_s
    if tokens > 1:
        record.tpot_s = (rounds[-1].end_s - rounds[0].end_s) / (tokens - 1)
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def failed_record(
    request_id: str, error: str = "the prompt is too long", **fields: Any
) -> RequestRecord:
    return make_record(request_id, finish_reason="error", error=error, **fields)


def simulate_chain(
    requests: int, rounds: int, draft: int, alpha: float, seed: int = 0
) -> list[RequestRecord]:
    """Requests decoded with chains of `draft` tokens, each accepted with probability `alpha` independently."""
    accepted = np.random.default_rng(seed).geometric(1 - alpha, size=(requests, rounds)) - 1
    seconds = {"draft_s": 0.002 * draft, "policy_s": 0.0005, "verify_s": 0.015, "commit_s": 0.001}
    step_s = sum(seconds.values())
    return [
        make_record(
            f"q{i}",
            *(
                make_round(draft, accepted=min(int(a), draft), end_s=step_s * (r + 1), **seconds)
                for r, a in enumerate(row)
            ),
            category=("chat", "code", "maths")[i % 3],
            text=f"Answer {i}",
        )
        for i, row in enumerate(accepted)
    ]


def autoregressive_like(
    records: list[RequestRecord], verify_s: float = 0.015
) -> list[RequestRecord]:
    """Return the same outputs decoded one token per round."""
    return [
        make_record(
            record.request_id,
            *(
                make_round(verify_s=verify_s, end_s=verify_s * (i + 1))
                for i in range(len(record.output_ids))
            ),
            category=record.category,
        )
        for record in records
    ]


def make_run(**fields: object) -> dict[str, Any]:
    """The content of a run.json."""
    return {
        "method": "fixed-k:k=4",
        "dataset": {
            "name": "gsm8k",
            "source": "hub",
            "location": "openai/gsm8k main test",
            "digest": "d1" * 32,
            "total": 1319,
            "count": 30,
        },
        "models": {
            "target": {"name": "bundled-target", "hash": "ab" * 32, "parameters": 5_050_000},
            "draft": {"name": "bundled-draft", "hash": "cd" * 32, "parameters": 812_000},
        },
        "config": {
            "max_new_tokens": 128,
            "batch_size": 1,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": 7,
            "device": "cpu",
            "dtype": "float32",
        },
        "time_kind": "measured",
        "hardware": {
            "cpu": "Some CPU",
            "physical_cores": 8,
            "torch_threads": 4,
            "gpu": None,
            "memory_gb": 31.9,
        },
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "argv": ["skit", "bench", "--method", "fixed-k:k=4", "--out", "my results"],
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "started_at": "2026-01-02T03:04:05+00:00",
        "requests": 30,
        **fields,
    }


def summary_of(
    records: list[RequestRecord],
    baseline: list[RequestRecord] | None = None,
    lossless: Mapping[str, object] | None = None,
    **fields: object,
) -> dict[str, Any]:
    """The content of a summary.json."""
    metrics = summarise(
        RequestGroup(records),
        RequestGroup(baseline) if baseline else None,
        makespan_s=2.0,
        baseline_makespan_s=4.0 if baseline else None,
    )
    failed = metrics["overall"]["failed"]
    requests = {"planned": len(records), "finished": len(records) - failed, "failed": failed}
    summary = {
        "method": "fixed-k:k=4",
        "partial": False,
        "requests": requests,
        **metrics,
        "lossless": lossless,
    }
    return summary | fields
